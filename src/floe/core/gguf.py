"""GGUF files: a header read in milliseconds, tensors as numpy arrays, whole files written.

Only numpy and struct. Shapes are numpy's, row-major: a linear layer is (out, in), the reverse of
the order in the file. String arrays (vocabularies) are skipped unless asked for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadModel
from floe.core.files import atomic_write
from floe.core.ggml import BF16 as BF16
from floe.core.ggml import F16 as F16
from floe.core.ggml import F32 as F32
from floe.core.ggml import Q8_0 as Q8_0
from floe.core.ggml import Buffer
from floe.core.ggml import TensorInfo as TensorInfo
from floe.core.ggml import n_bytes_of as n_bytes_of
from floe.core.ggml import tensor_array as tensor_array

_MAGIC = b"GGUF"
_MAX_METADATA, _MAX_TENSORS, _MAX_DIMS, _MAX_NAME_BYTES = 1 << 16, 1 << 20, 4, 1 << 16
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_DTYPES = {k: np.dtype(v).newbyteorder("<") for k, v in _SCALARS.items()}
_TYPE_OF = {v: k for k, v in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class SkippedArray:
    """A string array that was not decoded; `count` is its length."""

    count: int


@dataclass(frozen=True, kw_only=True)
class RawValue:
    """A metadata value as the bytes in the file, to be copied without decoding it."""

    type: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """A tensor to write whose bytes come from `load` when its turn has come."""

    shape: tuple[int, ...]
    type: int
    load: Callable[[], Buffer | NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Everything but the weights.

    Numeric arrays of `metadata` are numpy arrays; string arrays are lists where they were asked
    for, else SkippedArray. `spans` holds (type, first byte, end) of each metadata value.
    """

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    version: int
    alignment: int
    spans: dict[str, tuple[int, int, int]]


# --- reading -----------------------------------------------------------------------------------


def read_header(path: Path, *, arrays: Iterable[str] = ()) -> GgufHeader:
    """The header of a GGUF file; string arrays named in `arrays` are decoded.

    Raises:
        BadModel: no such file, not GGUF, truncated, or counts that cannot be.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise BadModel(f"{path} is empty, not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_header(data, source=str(path), arrays=arrays)
    except OSError as error:
        raise BadModel(f"cannot read {path}: {error.strerror}") from error


def parse_header(data: Buffer, *, source: str, arrays: Iterable[str] = ()) -> GgufHeader:
    """`read_header` of bytes in memory; `source` names them in errors."""
    return _Reader(data, source=source, arrays=frozenset(arrays)).header()


def raw_values(path: Path, header: GgufHeader) -> dict[str, RawValue]:
    """Every metadata value of the file as raw bytes, in the file's order."""
    with path.open("rb") as file:
        out = {}
        for key, (type_id, start, stop) in header.spans.items():
            file.seek(start)
            out[key] = RawValue(type=type_id, data=file.read(stop - start))
        return out


class _Reader:
    """A cursor over the header; every step stays inside the data or raises BadModel."""

    def __init__(self, data: Buffer, *, source: str, arrays: frozenset[str]) -> None:
        self._data, self._size = data, len(data)
        self._source, self._arrays = source, arrays
        self._at = 0
        self._where = "the file's head"

    def header(self) -> GgufHeader:
        magic = bytes(self._data[:4])
        if magic != _MAGIC:
            raise self._bad(f"is not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
        self._at = 4
        version = int(self._scalar("I"))
        if version not in (2, 3):
            raise self._bad(
                f"has GGUF version {version}; versions 2 and 3 (little-endian) are read"
            )
        n_tensors, n_metadata = int(self._scalar("Q")), int(self._scalar("Q"))
        self._limit(n_metadata, _MAX_METADATA, "metadata entries")
        self._limit(n_tensors, _MAX_TENSORS, "tensors")
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int, int]] = {}
        for _ in range(n_metadata):
            key = self._key("a metadata key")
            self._where = f"metadata {key!r}"
            if key in metadata:
                raise self._bad(f"has {self._where} twice")
            type_id = int(self._scalar("I"))
            start = self._at
            metadata[key] = self._value(key, type_id)
            spans[key] = (type_id, start, self._at)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._bad(f"has general.alignment {alignment!r}, which is no power of two")
        tensors = self._tensors(n_tensors, alignment)
        return GgufHeader(
            metadata=metadata, tensors=tensors, version=version, alignment=alignment, spans=spans
        )

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        found: dict[str, tuple[tuple[int, ...], int, int, int]] = {}
        for _ in range(count):
            name = self._key("a tensor's name")
            self._where = f"tensor {name!r}"
            if name in found:
                raise self._bad(f"has {self._where} twice")
            n_dims = int(self._scalar("I"))
            self._limit(n_dims, _MAX_DIMS, f"dimensions in {self._where}")
            shape = tuple(reversed([int(self._scalar("Q")) for _ in range(n_dims)]))
            type_id, offset = int(self._scalar("I")), int(self._scalar("Q"))
            try:
                n_bytes = n_bytes_of(shape, type_id)
            except ValueError as error:
                raise self._bad(f"has {self._where} with {error}") from error
            if offset % alignment:
                raise self._bad(f"has {self._where} at an offset not aligned to {alignment}")
            found[name] = (shape, type_id, offset, n_bytes)
        start = -(-self._at // alignment) * alignment
        tensors = {}
        for name, (shape, type_id, offset, n_bytes) in found.items():
            if start + offset + n_bytes > self._size:
                raise self._bad(
                    f"is truncated: tensor {name!r} ends at byte {start + offset + n_bytes}, "
                    f"the file at {self._size}. Fetch it again"
                )
            tensors[name] = TensorInfo(
                shape=shape, type=type_id, offset=start + offset, n_bytes=n_bytes
            )
        return tensors

    def _value(self, key: str, type_id: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array(key)
        if type_id not in _SCALARS:
            raise self._bad(f"has {self._where} with unknown value type {type_id}")
        return self._scalar(_SCALARS[type_id])

    def _array(self, key: str) -> Any:
        element, count = int(self._scalar("I")), int(self._scalar("Q"))
        if element == _STRING:
            self._limit(count, (self._size - self._at) // 8, f"strings in {self._where}")
            if key in self._arrays:
                return [self._string() for _ in range(count)]
            self._skip_strings(count)
            return SkippedArray(count=count)
        if element not in _DTYPES:
            raise self._bad(f"has {self._where}, an array of unknown type {element}")
        dtype = _DTYPES[element]
        self._limit(count, (self._size - self._at) // dtype.itemsize, f"values in {self._where}")
        array = np.frombuffer(self._data, dtype, count=count, offset=self._at).copy()
        self._at += count * dtype.itemsize
        return array

    def _skip_strings(self, count: int) -> None:
        data, at, read = self._data, self._at, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + read(data, at)[0]
        except (struct.error, OverflowError, IndexError) as error:
            raise self._truncated() from error
        if at > self._size:
            raise self._truncated()
        self._at = at

    def _scalar(self, code: str) -> int | float | bool:
        try:
            (value,) = struct.unpack_from("<" + code, self._data, self._at)
        except struct.error as error:
            raise self._truncated() from error
        self._at += struct.calcsize("<" + code)
        return value  # type: ignore[no-any-return]

    def _bytes(self, limit: int) -> bytes:
        length = int(self._scalar("Q"))
        if length > self._size - self._at:
            raise self._truncated()
        self._limit(length, limit, f"bytes in {self._where}")
        data = bytes(self._data[self._at : self._at + length])
        self._at += length
        return data

    def _string(self) -> str:
        return self._bytes(self._size).decode("utf-8", "backslashreplace")

    def _key(self, what: str) -> str:
        self._where = what
        try:
            return self._bytes(_MAX_NAME_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"has {what} that is not UTF-8") from error

    def _limit(self, count: int, limit: int, what: str) -> None:
        if count > limit:
            raise self._bad(f"claims {count} {what}; more than {limit} cannot be")

    def _truncated(self) -> BadModel:
        return self._bad(f"is truncated: it ends inside {self._where}. Fetch it again")

    def _bad(self, what: str) -> BadModel:
        return BadModel(f"{self._source} {what}")


# --- writing -----------------------------------------------------------------------------------


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any] | RawTensor],
) -> None:
    """Write a little-endian GGUF v3 file, whole or not at all.

    Values: str, bool, int, float, numpy scalars (keep their type), sequences of one of them,
    numpy arrays, RawValue. Arrays of float32 become F32, of float16 F16; RawTensor is written as
    it is, loaded one at a time.

    Raises:
        ValueError: a value or tensor that GGUF cannot hold; nothing is written.
    """
    raw_alignment = metadata.get("general.alignment", 32)
    if isinstance(raw_alignment, RawValue):
        raw_alignment = int.from_bytes(raw_alignment.data, "little")
    alignment = int(raw_alignment)
    plan = {name: _as_raw(name, value) for name, value in tensors.items()}
    head = [_MAGIC, struct.pack("<IQQ", 3, len(plan), len(metadata))]
    head += [_string_bytes(key) + _value_bytes(key, value) for key, value in metadata.items()]
    offset = 0
    for name, tensor in plan.items():
        size = n_bytes_of(tensor.shape, tensor.type)
        head.append(_string_bytes(name) + struct.pack("<I", len(tensor.shape)))
        head.append(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
        head.append(struct.pack("<IQ", tensor.type, offset))
        offset += -(-size // alignment) * alignment
    block = b"".join(head)
    with atomic_write(path) as file:
        file.write(block + bytes(-len(block) % alignment))
        for name, tensor in plan.items():
            data: Any = tensor.load()
            if isinstance(data, np.ndarray):
                data = np.ascontiguousarray(data)
            view = memoryview(data)
            size = n_bytes_of(tensor.shape, tensor.type)
            if view.nbytes != size:
                raise ValueError(
                    f"tensor {name!r} gave {view.nbytes} bytes, its shape needs {size}"
                )
            file.write(view)
            file.write(bytes(-size % alignment))


def _as_raw(name: str, value: NDArray[Any] | RawTensor) -> RawTensor:
    if isinstance(value, np.ndarray):
        types = {np.dtype("<f4"): F32, np.dtype("<f2"): F16}
        if value.dtype not in types:
            raise ValueError(
                f"tensor {name!r} is {value.dtype}; write float32, float16 or a RawTensor"
            )
        array = value
        value = RawTensor(shape=value.shape, type=types[value.dtype], load=lambda: array)
    if not 1 <= len(value.shape) <= _MAX_DIMS:
        raise ValueError(f"tensor {name!r} has {len(value.shape)} dimensions; GGUF holds 1 to 4")
    return value


def _string_bytes(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value_bytes(key: str, value: Any) -> bytes:
    """Type id and value of one metadata entry."""
    if isinstance(value, RawValue):
        return struct.pack("<I", value.type) + value.data
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string_bytes(value)
    if isinstance(value, Sequence) and all(isinstance(v, str) for v in value):
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(value))
        return head + b"".join(_string_bytes(v) for v in value)
    if isinstance(value, np.generic):
        return struct.pack("<I", _element(key, value.dtype)) + value.tobytes()
    if isinstance(value, Sequence):
        value = _numbers(key, value)
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise ValueError(f"metadata {key!r} cannot be an array of {value.ndim} dimensions")
        element = _element(key, value.dtype)
        return struct.pack("<IIQ", _ARRAY, element, len(value)) + bytes(
            value.astype(_DTYPES[element], copy=False).tobytes()
        )
    return _scalar_bytes(key, value)


def _element(key: str, dtype: np.dtype[Any]) -> int:
    element = _TYPE_OF.get(dtype.newbyteorder("<"))
    if element is None:
        raise ValueError(f"metadata {key!r} cannot hold {dtype}")
    return element


def _numbers(key: str, values: Sequence[Any]) -> NDArray[Any]:
    if all(isinstance(v, bool) for v in values):
        return np.asarray(values, np.bool_)
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        small = all(-(1 << 31) <= v < 1 << 31 for v in values)
        return np.asarray(values, np.int32 if small else np.int64)
    if all(isinstance(v, float) for v in values):
        return np.asarray(values, np.float32)
    raise ValueError(f"metadata {key!r} mixes kinds of values or holds one GGUF does not know")


def _scalar_bytes(key: str, value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        for type_id, low, high in ((4, 0, 1 << 32), (5, -(1 << 31), 0), (10, 0, 1 << 64)):
            if low <= value < high:
                return struct.pack("<I" + _SCALARS[type_id], type_id, value)
        if -(1 << 63) <= value < 0:
            return struct.pack("<Iq", 11, value)
    raise ValueError(f"metadata {key!r} cannot be the {type(value).__name__} given")
