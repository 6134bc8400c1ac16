"""A small network in numpy: F inputs, one hidden layer of N tanh units, one output.

Rows B stand for places. Weights are plain arrays, in JSON on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig

Array = NDArray[np.float64]
_MOST_SIGMAS = 6.0


@dataclass(frozen=True, kw_only=True)
class Net:
    """Standardisation and layers; `names` are the inputs in their order."""

    names: tuple[str, ...]
    mean_F: Array
    scale_F: Array
    hidden_FN: Array
    hidden_bias_N: Array
    out_N: Array
    out_bias: float

    def standard(self, rows: Array) -> Array:
        """Inputs in standard deviations, cut at six: a place unlike any seen decides nothing."""
        cut: Array = np.clip((rows - self.mean_F) / self.scale_F, -_MOST_SIGMAS, _MOST_SIGMAS)
        return cut

    def __call__(self, rows: Array) -> Array:
        """The output for one row (F,) or many (B, F)."""
        hidden = np.tanh(self.standard(rows) @ self.hidden_FN + self.hidden_bias_N)
        out: Array = hidden @ self.out_N + self.out_bias
        return out

    def as_json(self) -> dict[str, Any]:
        """Plain lists."""
        return {
            "names": list(self.names),
            "mean": _rounded(self.mean_F),
            "scale": _rounded(self.scale_F),
            "hidden": _rounded(self.hidden_FN),
            "hidden_bias": _rounded(self.hidden_bias_N),
            "out": _rounded(self.out_N),
            "out_bias": round(self.out_bias, 6),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, names: tuple[str, ...]) -> Net:
        """The network in `data`, for inputs called `names`.

        Raises:
            BadConfig: other inputs, wrong shapes, or numbers that are not finite.
        """
        try:
            if tuple(data["names"]) != names:
                raise ValueError("its inputs have other names than this version computes")
            made = cls(
                names=names,
                mean_F=_array(data["mean"], len(names)),
                scale_F=_array(data["scale"], len(names)),
                hidden_FN=_array(data["hidden"], len(names), len(data["out"])),
                hidden_bias_N=_array(data["hidden_bias"], len(data["out"])),
                out_N=_array(data["out"], len(data["out"])),
                out_bias=float(_array([data["out_bias"]], 1)[0]),
            )
            if (made.scale_F <= 0.0).any():
                raise ValueError("a scale is not above 0")
        except (KeyError, TypeError, ValueError) as error:
            raise BadConfig(f"the fusion weights cannot be used: {error}") from error
        return made


def _rounded(array: Array) -> Any:
    return np.round(array, 6).tolist()


def _array(values: Any, *shape: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"an array has shape {array.shape}, not {shape}")
    if not np.isfinite(array).all():
        raise ValueError("a number in it is not finite")
    return array
