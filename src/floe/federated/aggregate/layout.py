"""What updates must have in common to be added up."""

from __future__ import annotations

import math

import numpy as np

from floe.core.errors import BadRound, BadUpdate
from floe.federated.base import Aggregate
from floe.federated.packed import PackedState, Places, places_of
from floe.federated.update import AdapterState, Update

_MOST_WEIGHT = 1e30  # above it sums in float32 overflow


class Layout:
    """The base, modules and shapes of the first update; the others must have the same."""

    def __init__(self) -> None:
        self.n_updates = 0
        self.n_examples = 0
        self.total_weight = 0.0
        self.base_digest = ""
        self.shapes: dict[str, tuple[int, int]] = {}
        self._seen: Places = ()

    def check(self, update: Update, *, weight: float) -> None:
        """Pass when the update can be added up with those before it.

        Raises:
            BadUpdate: with `reason` "weight", "empty", "base", "modules", "shape" or "not_finite".
        """
        if not 0.0 < weight <= _MOST_WEIGHT:
            raise BadUpdate(
                f"a weight must be finite and above 0, not {weight}: client {update.client!r}",
                reason="weight",
            )
        if not self._seen or places_of(update.state) != self._seen:
            self._check_form(update)
        if self.n_updates and update.state.base_digest != self.base_digest:
            raise BadUpdate(
                f"client {update.client!r} trained on base {update.state.base_digest[:12]!r}, the "
                f"round is about {self.base_digest[:12]!r}",
                reason="base",
            )
        if not all_finite(update.state):
            raise BadUpdate(
                f"client {update.client!r}, module {_not_finite(update.state)!r}: a value is NaN "
                "or infinite",
                reason="not_finite",
            )

    def take(self, update: Update, *, weight: float) -> None:
        """Note a checked update as one of those added up."""
        if not self.n_updates:
            self.base_digest = update.state.base_digest
            self.shapes = shapes_of(update.state)
            self._seen = places_of(update.state)
        self.n_updates += 1
        self.n_examples += update.n_examples
        self.total_weight += weight

    def require_some(self) -> None:
        """Pass when anything was added.

        Raises:
            BadRound: nothing was.
        """
        if not self.n_updates:
            raise BadRound(
                "no update was taken in, so there is nothing to average; the last good adapter "
                "stays"
            )

    def aggregate(
        self, state: AdapterState, *, truncation_error: float = 0.0, compression_error: float = 0.0
    ) -> Aggregate:
        """A state as the aggregate of what was taken in."""
        return Aggregate(
            state=state,
            n_updates=self.n_updates,
            n_examples=self.n_examples,
            truncation_error=truncation_error,
            compression_error=compression_error,
        )

    def _check_form(self, update: Update) -> None:
        found = shapes_of(update.state)
        if not found or not all(f.rank for f in update.state.modules.values()):
            raise BadUpdate(
                f"client {update.client!r} sent no factors, or factors of rank 0", reason="empty"
            )
        if not self.n_updates:
            return
        if found.keys() != self.shapes.keys():
            other = sorted(found.keys() ^ self.shapes.keys())
            raise BadUpdate(
                f"client {update.client!r} changes other modules than the first update: "
                f"{other[0]!r} and {len(other) - 1} more",
                reason="modules",
            )
        for name, shape in found.items():
            if shape != self.shapes[name]:
                raise BadUpdate(
                    f"client {update.client!r}, module {name!r}: the layer is "
                    f"{self.shapes[name]} (outputs, inputs), the update {shape}",
                    reason="shape",
                )


def shapes_of(state: AdapterState) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) by module.

    Raises:
        BadUpdate: the two factors of a module do not fit each other.
    """
    out = {}
    for name, factors in state.modules.items():
        a, b = factors.a_RI.shape, factors.b_OR.shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise BadUpdate(f"module {name!r}: A {a} and B {b} do not multiply", reason="shape")
        out[name] = (b[0], a[1])
    return out


def all_finite(state: AdapterState) -> bool:
    """Whether no value is NaN or infinite; one pass, without masks unless the sum overflows."""
    if isinstance(state, PackedState):
        return math.isfinite(np.vdot(state.flat, state.flat)) or not _not_finite(state)
    total = 0.0
    for factors in state.modules.values():
        bt_RO = factors.b_OR.T  # as it lies in memory mostly
        total += float(np.vdot(factors.a_RI, factors.a_RI)) + float(np.vdot(bt_RO, bt_RO))
    return math.isfinite(total) or not _not_finite(state)


def _not_finite(state: AdapterState) -> str:
    """The first module with a value that is NaN or infinite; "" when there is none."""
    for name, factors in state.modules.items():
        if not (np.isfinite(factors.a_RI).all() and np.isfinite(factors.b_OR).all()):
            return name
    return ""
