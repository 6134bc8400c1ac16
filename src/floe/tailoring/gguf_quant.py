"""Quantization types per tensor group: the one door to the `gguf` package in tailoring.

B = blocks of 32 values, O = outputs of a linear layer (rows), I = its inputs. llama.cpp's own
quantizer is not in the library that serves (`llama_model_quantize` is stripped from it), so there
is no imatrix file either: scales weighted by activations are fitted here, with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core import gguf
from floe.core.errors import BadModel, BadPlan, Missing
from floe.tailoring.plan import GROUPS, QUANTS

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]
OnTensor = Callable[[str, int, int], None]
"""A tensor's name, how many are written, how many there are."""

TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8}
BLOCK = 32
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9}
_CHUNK_VALUES = 1 << 20
_LEVELS = {"Q4_0": 16, "Q4_1": 16, "Q5_0": 32, "Q5_1": 32}
_ROUNDS = 3  # a fourth round changes less than 0.1 % of the weighted error


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What was written: tensors by type, those that could not have the asked type, bytes."""

    types: Mapping[str, int]
    fallbacks: tuple[str, ...]
    weights_bytes: int
    file_bytes: int


def group_of(name: str) -> str | None:
    """The group a GGUF tensor's type is chosen by; None for norms and biases, always F32."""
    if not name.endswith(".weight") or "norm" in name:
        return None
    if name in ("token_embd.weight", "output.weight"):
        return "embedding" if name.startswith("token") else "output"
    for mark, group in ((".attn_", "attention"), (".ffn_", "ffn")):
        if mark in name:
            return group
    return None


def stored_as(quant: str, row_values: int) -> str:
    """The type a row of that many values gets: F16 where blocks of 32 do not fill it."""
    if quant in ("F32", "F16") or row_values % BLOCK == 0:
        return quant
    return "F16"


def check_quants(quants: Mapping[str, str]) -> None:
    """Raise BadPlan for a group or a type that there is not."""
    for group, quant in quants.items():
        if group not in GROUPS:
            raise BadPlan(
                f"there is no tensor group {group!r}; groups are {', '.join(GROUPS)}",
                param="quants",
            )
        if quant not in QUANTS:
            raise BadPlan(
                f"quantization type {quant!r} of group {group!r} is not one of {', '.join(QUANTS)}",
                param="quants",
            )


# --- arrays ------------------------------------------------------------------------------------


def quantize(
    weight_OI: FloatArray, quant: str, *, importance_I: NDArray[Any] | None = None
) -> Bytes:
    """The bytes of a weight in that type, rows one after another.

    With `importance_I`, the mean square of each input's activation, the scales of 4 and 5 bit
    types minimise the error weighted by it, and are never worse by that measure.

    Raises:
        BadPlan: an unknown type, or rows that its blocks do not fill.
        Missing: the `gguf` package is not installed.
    """
    if quant not in TYPE_IDS:
        raise BadPlan(f"quantization type {quant!r} is not one of {', '.join(QUANTS)}")
    n_inputs = weight_OI.shape[-1]
    if stored_as(quant, n_inputs) != quant:
        raise BadPlan(
            f"rows of {n_inputs} values cannot be {quant}, which stores {BLOCK} at a time: "
            "use F16, or a width that is a multiple of 32"
        )
    rows = weight_OI.reshape(-1, n_inputs)
    step = max(1, _CHUNK_VALUES // n_inputs)
    parts = [
        _quantize_rows(np.ascontiguousarray(rows[i : i + step], np.float32), quant, importance_I)
        for i in range(0, len(rows), step)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def dequantize(raw: Bytes, type_id: int, shape: tuple[int, ...]) -> FloatArray:
    """A tensor's bytes as float32.

    Raises:
        BadModel: the type cannot be read. Missing: the `gguf` package is not installed.
    """
    door = _package()
    try:
        values = door.quants.dequantize(raw, door.GGMLQuantizationType(type_id))
        return np.asarray(values, np.float32).reshape(shape)
    except (NotImplementedError, ValueError) as error:
        raise BadModel(
            f"a tensor of ggml type {type_id} cannot be dequantized here; start from an F16, "
            "Q8_0 or Q4 file of the model"
        ) from error


def _quantize_rows(rows_OI: FloatArray, quant: str, importance_I: NDArray[Any] | None) -> Bytes:
    door = _package()
    # Blocks of values below 1e-37 have scales whose inverse is infinite; they are stored as 0.
    with np.errstate(all="ignore"):
        plain = door.quants.quantize(rows_OI, door.GGMLQuantizationType(TYPE_IDS[quant]))
        if importance_I is None or quant not in _LEVELS:
            return np.ascontiguousarray(plain).view(np.uint8).reshape(-1)
        blocks = rows_OI.reshape(-1, BLOCK)
        weights = np.broadcast_to(_weights(importance_I, rows_OI.shape[1]), rows_OI.shape)
        return _weighted(blocks, weights.reshape(-1, BLOCK), quant, plain.reshape(len(blocks), -1))


def _package() -> Any:
    try:
        import gguf as package
        import gguf.quants
    except ImportError as error:
        raise Missing(
            "the gguf package is not installed. Install it with: pip install 'floe[tailor]'"
        ) from error
    return package


# --- scales weighted by activations ------------------------------------------------------------


def _weights(importance_I: NDArray[Any], n_inputs: int) -> FloatArray:
    if importance_I.shape != (n_inputs,) or not np.isfinite(importance_I).all():
        raise BadPlan(
            f"an importance of shape {importance_I.shape} does not weigh {n_inputs} inputs with "
            "finite numbers"
        )
    mean = float(importance_I.mean())
    if mean <= 0.0:
        return np.ones(n_inputs, np.float32)
    # A floor, so that inputs unseen in calibration still count.
    return np.asarray(importance_I / mean + 0.01, np.float32)


def _weighted(x_B: FloatArray, w_B: FloatArray, quant: str, plain_B: Bytes) -> Bytes:
    """Blocks with fitted scales where those are better than the plain ones."""
    affine = quant.endswith("_1")
    top = _LEVELS[quant] - 1
    scale, low = _starts(x_B, top, affine=affine)
    for _ in range(_ROUNDS):
        q = _levels(x_B, scale, low, top, affine=affine)
        scale, low = _fit(x_B, w_B, _signed(q, top, affine=affine), scale, low, affine=affine)
    scale, low = (v.astype(np.float16).astype(np.float32) for v in (scale, low))
    q = _levels(x_B, scale, low, top, affine=affine)
    fitted = _packed(q, scale, low, affine=affine, five=top == 31)
    before = dequantize(plain_B.reshape(-1), TYPE_IDS[quant], x_B.shape)
    error = (w_B * (scale * _signed(q, top, affine=affine) + low - x_B) ** 2).sum(axis=-1)
    plain_error = (w_B * (before - x_B) ** 2).sum(axis=-1)
    better = np.isfinite(error) & (error < plain_error)
    return np.where(better[:, None], fitted, plain_B).reshape(-1)


def _starts(x_B: FloatArray, top: int, *, affine: bool) -> tuple[FloatArray, FloatArray]:
    if affine:
        low = x_B.min(axis=-1, keepdims=True)
        return (x_B.max(axis=-1, keepdims=True) - low) / np.float32(top), low
    far = np.take_along_axis(x_B, np.abs(x_B).argmax(axis=-1, keepdims=True), axis=-1)
    return far / np.float32(-(top + 1) / 2), np.zeros_like(far)


def _levels(
    x_B: FloatArray, scale: FloatArray, low: FloatArray, top: int, *, affine: bool
) -> FloatArray:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    offset = np.float32(0 if affine else (top + 1) / 2)
    q = np.rint((x_B - low) * inverse + offset)
    levels: FloatArray = np.clip(np.nan_to_num(q), 0, top)
    return levels


def _signed(q: FloatArray, top: int, *, affine: bool) -> FloatArray:
    return q if affine else q - np.float32((top + 1) / 2)


def _fit(
    x_B: FloatArray,
    w_B: FloatArray,
    q: FloatArray,
    scale: FloatArray,
    low: FloatArray,
    *,
    affine: bool,
) -> tuple[FloatArray, FloatArray]:
    """Weighted least squares of x over the signed levels; what cannot be solved stays."""
    if not affine:
        norm = (w_B * q * q).sum(-1, keepdims=True)
        solved = np.divide((w_B * q * x_B).sum(-1, keepdims=True), norm, out=scale.copy(),
                           where=norm > 0)  # fmt: skip
        return solved, low
    total = w_B.sum(-1, keepdims=True)
    mean_q = (w_B * q).sum(-1, keepdims=True) / total
    mean_x = (w_B * x_B).sum(-1, keepdims=True) / total
    spread = (w_B * (q - mean_q) ** 2).sum(-1, keepdims=True)
    slope = (w_B * (q - mean_q) * (x_B - mean_x)).sum(-1, keepdims=True)
    scale = np.divide(slope, spread, out=scale.copy(), where=spread > 0)
    return scale, np.where(spread > 0, mean_x - scale * mean_q, low)


def _packed(
    q: FloatArray, scale: FloatArray, low: FloatArray, *, affine: bool, five: bool
) -> Bytes:
    """Blocks as ggml lays them out: scale, minimum, fifth bits, low four bits in two halves."""
    levels = q.astype(np.uint8)
    halves = [scale, low] if affine else [scale]
    parts: list[NDArray[Any]] = [v.astype(np.float16).view(np.uint8) for v in halves]
    if five:
        parts.append(np.packbits(levels >> 4, axis=-1, bitorder="little"))
    parts.append((levels[:, :16] & 15) | ((levels[:, 16:] & 15) << 4))
    return np.concatenate(parts, axis=-1)


# --- files -------------------------------------------------------------------------------------


def quantize_gguf(
    source: Path,
    target: Path,
    quants: Mapping[str, str],
    *,
    importance: Mapping[str, NDArray[Any]] | None = None,
    on_tensor: OnTensor | None = None,
) -> Quantized:
    """Write `source` with each group of `quants` in its type; groups not named stay as they are.

    One tensor is in memory at a time; metadata is copied byte by byte. `importance` has mean
    squares of inputs by tensor name. Rows that are no multiple of 32 become F16.

    Raises:
        BadPlan: an unknown group or type, or an importance that does not fit.
        BadModel: the source cannot be read. Missing: no `gguf` package.
    """
    check_quants(quants)
    _package()
    header = gguf.read_header(source)
    tensors: dict[str, NDArray[Any] | gguf.RawTensor] = {}
    types: dict[str, int] = {}
    fallbacks: list[str] = []
    for number, (name, info) in enumerate(header.tensors.items(), start=1):
        quant = quants.get(group_of(name) or "")
        as_type = info.type if quant is None else TYPE_IDS[stored_as(quant, info.shape[-1])]
        if quant is not None and as_type != TYPE_IDS[quant]:
            fallbacks.append(name)
        label = _name_of(as_type)
        types[label] = types.get(label, 0) + 1
        load = partial(_load, source, name, info, as_type, (importance or {}).get(name))
        told = partial(on_tensor or _silent, name, number, len(header.tensors))
        tensors[name] = gguf.RawTensor(
            shape=info.shape, type=as_type, load=partial(_loaded, load, told)
        )
    gguf.write(target, _metadata(source, header, quants), tensors)
    written = gguf.read_header(target)
    return Quantized(
        types=types,
        fallbacks=tuple(fallbacks),
        weights_bytes=weights_bytes(written),
        file_bytes=target.stat().st_size,
    )


def weights_bytes(header: gguf.GgufHeader) -> int:
    """Bytes of a file's tensors, each filled up to the file's alignment."""
    a = header.alignment
    return sum(-(-info.n_bytes // a) * a for info in header.tensors.values())


def _metadata(
    source: Path, header: gguf.GgufHeader, quants: Mapping[str, str]
) -> dict[str, gguf.RawValue | int]:
    metadata: dict[str, gguf.RawValue | int] = dict(gguf.raw_values(source, header))
    chosen = quants.get("ffn") or quants.get("attention")
    if chosen is not None:
        metadata["general.file_type"] = _FILE_TYPES[chosen]
    if any(quant.startswith("Q") for quant in quants.values()):
        metadata["general.quantization_version"] = 2
    return metadata


def _name_of(type_id: int) -> str:
    return next((n for n, known in TYPE_IDS.items() if known == type_id), f"type {type_id}")


def _silent(_name: str, _done: int, _total: int) -> None: ...


def _loaded(load: Callable[[], Bytes], told: Callable[[], None]) -> Bytes:
    data = load()
    told()
    return data


def _load(
    source: Path, name: str, info: gguf.TensorInfo, as_type: int, importance_I: NDArray[Any] | None
) -> Bytes:
    raw = np.fromfile(source, np.uint8, count=info.n_bytes, offset=info.offset)
    if info.type == as_type:
        return raw
    try:
        weight = dequantize(raw, info.type, info.shape)
    except BadModel as error:
        raise BadModel(f"{source}, {name}: {error.message}") from error
    return quantize(weight, _name_of(as_type), importance_I=importance_I)
