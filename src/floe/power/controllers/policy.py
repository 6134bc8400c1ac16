"""A small multilayer perceptron as plain arrays: under 1,000 numbers, numpy at run time.

Legend: F features, H hidden, O outputs, N parameters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig
from floe.core.files import atomic_write

Vector = NDArray[np.float64]
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Two hidden layers with tanh. `card` says how it was trained."""

    in_FH: Vector
    in_H: Vector
    mid_HH: Vector
    mid_H: Vector
    out_HO: Vector
    out_O: Vector
    card: dict[str, object]

    def __call__(self, features_F: Vector) -> Vector:
        """The outputs (O,)."""
        hidden_H = np.tanh(features_F @ self.in_FH + self.in_H)
        hidden_H = np.tanh(hidden_H @ self.mid_HH + self.mid_H)
        made: Vector = hidden_H @ self.out_HO + self.out_O
        return made

    @property
    def arrays(self) -> tuple[Vector, ...]:
        """The parameters, in a fixed order."""
        return (self.in_FH, self.in_H, self.mid_HH, self.mid_H, self.out_HO, self.out_O)

    @property
    def n_parameters(self) -> int:
        """N."""
        return sum(array.size for array in self.arrays)

    def flat(self) -> Vector:
        """The parameters as one vector (N,)."""
        return np.concatenate([array.ravel() for array in self.arrays])

    def with_flat(self, flat_N: Vector) -> Policy:
        """The same shape with other numbers."""
        parts, at = [], 0
        for array in self.arrays:
            parts.append(flat_N[at : at + array.size].reshape(array.shape))
            at += array.size
        return _of(parts, self.card)


def blank(features: int, hidden: int, outputs: int) -> Policy:
    """A policy of zeros: its outputs are zero."""
    shapes = [(features, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, outputs)]
    return _of([np.zeros(shape) for shape in [*shapes, (outputs,)]], {})


def save(policy: Policy, path: Path) -> None:
    """Write it as JSON, whole or not at all."""
    body = {
        "version": VERSION,
        "card": policy.card,
        "arrays": [np.round(array, 6).tolist() for array in policy.arrays],
    }
    with atomic_write(path) as file:
        file.write(json.dumps(body, separators=(",", ":")).encode())


def load(path: Path, *, features: int, outputs: int) -> Policy:
    """A policy from a file.

    Raises:
        BadConfig: it cannot be read, is of another version or shape, or not finite.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), features=features, outputs=outputs)
    except OSError as error:
        raise BadConfig(f"cannot read the policy {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadConfig(f"{path} is no power policy: {error}") from error


def shipped(name: str, *, features: int, outputs: int) -> Policy:
    """A policy that comes with Floe."""
    text = (files("floe.power") / "data" / f"{name}.json").read_text(encoding="utf-8")
    return parse(text, features=features, outputs=outputs)


def parse(text: str, *, features: int, outputs: int) -> Policy:
    """A policy from JSON text; ValueError says what is wrong with it."""
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("version") != VERSION:
        raise ValueError(f"its version is not {VERSION}")
    arrays = [np.asarray(a, dtype=np.float64) for a in body.get("arrays", ())]
    wanted = blank(features, len(arrays[1]) if len(arrays) > 1 else 1, outputs)
    if [a.shape for a in arrays] != [a.shape for a in wanted.arrays]:
        raise ValueError(f"it does not take {features} features to {outputs} outputs")
    if not all(np.isfinite(a).all() for a in arrays):
        raise ValueError("it holds numbers that are not finite")
    return _of(arrays, dict(body.get("card", {})))


def _of(parts: list[Vector], card: dict[str, object]) -> Policy:
    a, b, c, d, e, f = parts
    return Policy(in_FH=a, in_H=b, mid_HH=c, mid_H=d, out_HO=e, out_O=f, card=card)
