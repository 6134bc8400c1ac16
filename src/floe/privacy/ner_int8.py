"""The NER model's 4-bit products as 8-bit ones, which onnxruntime computes about twice as fast.

onnxruntime unpacks 4-bit weights to floats; with 8-bit weights and inputs it multiplies integers.
The file is rewritten in memory, by its wire format (protobuf, onnx.proto3), so that no further
package is needed. Weights get 7 bits and a scale for each column: 8 could overflow on processors
without VNNI. Shapes: K inputs, N outputs, B blocks of 32 inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_INPUT, _OP, _ATTRIBUTE = 1, 4, 5
_DIMS, _TYPE, _NAME, _RAW = 1, 2, 8, 9
_FLOAT, _INT8 = 1, 3
_LARGEST = 63
_Value = int | bytes | memoryview
_Field = tuple[int, _Value]


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A MatMulNBits node: names of its inputs, and its sizes."""

    inputs: tuple[str, ...]
    k: int
    n: int


def with_int8(model: bytes) -> bytes:
    """The ONNX file `model` with every 4-bit product of block size 32 as an 8-bit one.

    Raises:
        ValueError: it is no ONNX file, or a product has weights of another form.
    """
    out: list[_Field] = []
    for number, value in _fields(memoryview(model)):
        out.append((number, _graph(value) if number == _GRAPH else value))
    return _packed(out)


def _graph(graph: _Value) -> bytes:
    fields = list(_fields(graph))
    tensors = {_name_of(v): v for number, v in fields if number == _INITIALIZER}
    out: list[_Field] = []
    used: set[str] = set()
    for number, value in fields:
        product = _product(value) if number == _NODE else None
        if product is None:
            out.append((number, value))
            continue
        used |= set(product.inputs[1:4])
        out.append((_NODE, _rewritten(value, product)))
        weights_KN, scales_N = _int8(_floats(product, tensors))
        weight = product.inputs[1]
        out.append((_INITIALIZER, _tensor(f"{weight}_int8", weights_KN, _INT8)))
        out.append((_INITIALIZER, _tensor(f"{weight}_scale", scales_N, _FLOAT)))
    return _packed(f for f in out if f[0] != _INITIALIZER or _name_of(f[1]) not in used)


def _product(node: _Value) -> _Product | None:
    fields = list(_fields(node))
    if (_OP, b"MatMulNBits") not in [(n, bytes(v)) for n, v in fields if n == _OP]:
        return None
    numbers = dict(_attribute(v) for n, v in fields if n == _ATTRIBUTE)
    if numbers.get(b"bits") != 4 or numbers.get(b"block_size") != 32:
        return None
    inputs = tuple(bytes(v).decode() for n, v in fields if n == _INPUT)
    return _Product(inputs=inputs, k=numbers[b"K"], n=numbers[b"N"])


def _attribute(value: _Value) -> tuple[bytes, int]:
    fields = dict(_fields(value))
    number = fields.get(3, 0)
    return bytes(fields[1]), number if isinstance(number, int) else 0


def _rewritten(node: _Value, product: _Product) -> bytes:
    """DynamicQuantizeMatMul: input, weights, scales, no zero point, and the bias if any."""
    weight = product.inputs[1]
    names = [product.inputs[0], f"{weight}_int8", f"{weight}_scale"]
    if len(product.inputs) > 5 and product.inputs[5]:
        names += ["", product.inputs[5]]
    kept = [(n, v) for n, v in _fields(node) if n not in (_INPUT, _OP, _ATTRIBUTE)]
    inputs = [(_INPUT, name.encode()) for name in names]
    return _packed([*inputs, *kept, (_OP, b"DynamicQuantizeMatMul")])


def _floats(product: _Product, tensors: Mapping[str, _Value]) -> NDArray[np.float32]:
    """The weights as floats, shape (N, K)."""
    k, n = product.k, product.n
    n_blocks = -(-k // 32)
    packed = _array(tensors[product.inputs[1]], np.uint8).reshape(n, n_blocks, 16)
    codes_NBI = np.stack([packed & 15, packed >> 4], axis=-1).reshape(n, n_blocks, 32)
    scales_NB = _array(tensors[product.inputs[2]], np.float32).reshape(n, n_blocks)
    zeros_NB = np.full((n, n_blocks), 8, dtype=np.float32)
    if len(product.inputs) > 3 and product.inputs[3]:
        pairs = _array(tensors[product.inputs[3]], np.uint8).reshape(n, -1)
        nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(n, -1)
        zeros_NB = nibbles[:, :n_blocks].astype(np.float32)
    weights: NDArray[np.float32] = (
        codes_NBI.astype(np.float32) - zeros_NB[:, :, None]
    ) * scales_NB[:, :, None]
    return weights.reshape(n, -1)[:, :k]


def _int8(weights_NK: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Codes of shape (K, N) and the scale of each column."""
    largest_N = np.abs(weights_NK).max(axis=1)
    scales_N = np.where(largest_N > 0, largest_N / _LARGEST, 1.0).astype(np.float32)
    codes_NK = np.rint(weights_NK / scales_N[:, None]).astype(np.int8)
    return np.ascontiguousarray(codes_NK.T), scales_N


def _array(tensor: _Value, dtype: type[np.generic]) -> NDArray[Any]:
    raw = [v for n, v in _fields(tensor) if n == _RAW]
    if not raw or isinstance(raw[0], int):
        raise ValueError("a weight is not stored as raw bytes")
    return np.frombuffer(raw[0], dtype=dtype)


def _tensor(name: str, values: NDArray[Any], kind: int) -> bytes:
    dims: Sequence[_Field] = [(_DIMS, size) for size in values.shape]
    return _packed([*dims, (_TYPE, kind), (_NAME, name.encode()), (_RAW, values.tobytes())])


def _name_of(tensor: _Value) -> str:
    return next((bytes(v).decode() for n, v in _fields(tensor) if n == _NAME), "")


def _fields(message: _Value) -> Iterator[_Field]:
    """Field numbers with an int (varint) or the bytes of the value, in order."""
    if isinstance(message, int):
        raise ValueError("a message was expected, not a number")
    at, data = 0, memoryview(message)
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("the file is no ONNX model")
        if at + size > len(data):
            raise ValueError("the file ends early")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("the file ends early")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _packed(fields: Iterable[_Field]) -> bytes:
    """The wire format of numbers and byte strings; messages here hold nothing else."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _as_varint(number << 3) + _as_varint(value)
        else:
            out += _as_varint(number << 3 | 2) + _as_varint(len(value)) + value
    return bytes(out)


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
