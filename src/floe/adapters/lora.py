"""A LoRA as arrays, and the checks that every one passes before it is written or served.

R = rank, I = inputs of a linear layer, O = its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadAdapter
from floe.core.model import ModelInfo

FloatArray = NDArray[np.float32]

MAX_RANK = 1024
MAX_FILE_BYTES = 1 << 30
MAX_CHANGE = 2.5
"""Largest root mean square of a layer's change B A, scale included, that is served.

A layer's own weights have 0.05 to 0.4 (SmolLM2-135M) and a trained adapter changes them by about
0.003, so this refuses only what is no training result, such as lora_alpha = 1e30. Measured: with
10 the engine's values are still numbers, with 30 not, and a request may ask for a scale of 4.
"""
_SHOWN = 8
_QUANTIZATION = re.compile(r"[-._ ](i?q\d\w*|bf16|f16|f32)$")


@dataclass(frozen=True, kw_only=True, eq=False)
class LoraPair:
    """The change of one linear layer is `b_OR @ a_RI`: every scale is already in `b_OR`."""

    a_RI: FloatArray
    b_OR: FloatArray

    @property
    def rank(self) -> int:
        """R, from the arrays (bug-log A13)."""
        return int(self.a_RI.shape[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class LoraTensors:
    """Pairs by GGUF module name, rows ordered as in the GGUF base.

    `base` is the model the adapter says it was trained on; `notes` tell what was ignored and why.
    """

    architecture: str
    pairs: Mapping[str, LoraPair]
    base: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The largest rank over modules."""
        return max(pair.rank for pair in self.pairs.values())


def read_whole(path: Path) -> bytes:
    """An adapter file's bytes.

    Raises:
        BadAdapter: no regular file, above MAX_FILE_BYTES, or unreadable.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe may never end
            raise BadAdapter(f"{path} is no regular file. Copy the file itself")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadAdapter(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise BadAdapter(f"cannot read {path}: {error.strerror}") from error


def refuse(source: str, faults: Iterable[str]) -> None:
    """Raise one BadAdapter with all `faults`, if there are any."""
    found = list(dict.fromkeys(faults))
    if not found:
        return
    shown = "".join(f"\n- {fault}" for fault in found[:_SHOWN])
    more = f"\n- and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise BadAdapter(f"adapter {source} cannot be applied:{shown}{more}")


def pair_faults(pairs: Mapping[str, LoraPair], model: ModelInfo) -> list[str]:
    """What keeps `pairs` from being applied to `model`; empty if nothing does."""
    faults: list[str] = []
    for name, pair in pairs.items():
        faults += _pair_faults(name, pair, model.linears.get(name))
    return faults


def effect_faults(pairs: Mapping[str, LoraPair]) -> list[str]:
    """A fault if every module's A or B is zero (bug-log A37)."""
    if not pairs or any(pair.a_RI.any() and pair.b_OR.any() for pair in pairs.values()):
        return []
    return ["has no effect: the product of A and B is zero in every module. Train it first"]


def base_fault(declared: str, model: ModelInfo) -> str | None:
    """Why an adapter that declares this base does not fit `model`; None if it does."""
    names = {base_name(name) for name in (*model.names, model.name)}
    if base_name(declared) in names:
        return None
    return (
        f"was trained on {declared!r}, this model is {model.name!r}. Serve that model, or add "
        "--any-base if you know that both are the same"
    )


def base_name(name: str) -> str:
    """The last component of a model's name or path, in one spelling, without its quantization."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    return "-".join(_QUANTIZATION.sub("", last).replace("_", "-").split())


def sample(names: Iterable[str], count: int = 3) -> str:
    """The first few of `names`, to show in a message."""
    listed = sorted(names)
    return ", ".join(listed[:count]) + (", ..." if len(listed) > count else "") or "none"


def _pair_faults(name: str, pair: LoraPair, shape: tuple[int, int] | None) -> list[str]:
    a_RI, b_OR = pair.a_RI, pair.b_OR
    if a_RI.ndim != 2 or b_OR.ndim != 2:
        return [f"{name}: A and B must be matrices, they are {a_RI.shape} and {b_OR.shape}"]
    if shape is None:
        return [f"{name}: the model has no such linear layer"]
    faults = []
    if a_RI.shape[0] != b_OR.shape[1]:
        faults.append(f"{name}: A has rank {a_RI.shape[0]}, B has rank {b_OR.shape[1]}")
    if (b_OR.shape[0], a_RI.shape[1]) != shape:
        faults.append(
            f"{name}: changes a layer of {b_OR.shape[0]} x {a_RI.shape[1]} (out x in), the "
            f"model's is {shape[0]} x {shape[1]}. It was trained on another model"
        )
    if not 1 <= a_RI.shape[0] <= MAX_RANK:
        faults.append(f"{name}: rank {a_RI.shape[0]} is outside 1 to {MAX_RANK}")
    if not (np.isfinite(a_RI).all() and np.isfinite(b_OR).all()):
        faults.append(f"{name}: holds NaN or infinite values. Its training diverged")
    elif not faults and (change := change_rms(pair)) > MAX_CHANGE:
        faults.append(
            f"{name}: changes its layer by {change:.3g} on average (root mean square, scale "
            f"included), the most is {MAX_CHANGE:g}; trained adapters have about 0.003. Check "
            "lora_alpha and r, or the learning rate it was trained with"
        )
    return faults


def change_rms(pair: LoraPair) -> float:
    """Root mean square over the entries of B A, from R x R products; finite for all float32."""
    a_RI, b_OR = pair.a_RI.astype(np.float64), pair.b_OR.astype(np.float64)
    squares = float(((b_OR.T @ b_OR) * (a_RI @ a_RI.T)).sum())
    return float(np.sqrt(max(0.0, squares) / (b_OR.shape[0] * a_RI.shape[1])))
