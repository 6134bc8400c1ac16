"""Robust aggregation: all updates are kept, looked at together, and then combined."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from floe.core.errors import BadRound
from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.grams import change_gram
from floe.federated.products import Doubles, cut_dense
from floe.federated.robust import Diagnosis, diagnose, refuse_above
from floe.federated.update import AdapterState, Factors, FloatArray, Update

HOSTILE_SHARE = 0.2


class Kept(ABC):
    """An aggregator that bears a bounded number of hostile updates. Memory grows with updates.

    `max_hostile` is that number; None is a fifth of those that came. `start` is the adapter all
    began with: what looks hostile is judged by the changes against it. After `close`, `diagnosis`
    says how each update lies among the others.
    """

    def __init__(
        self, *, max_hostile: int | None = None, start: AdapterState | None = None
    ) -> None:
        self.diagnosis: Diagnosis | None = None
        self._max_hostile = max_hostile
        self._start = start
        self._layout = Layout()
        self._kept: list[tuple[Update, float]] = []

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; see `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._layout.take(update, weight=weight)
        self._kept.append((update, weight))

    def close(self, *, rank: int) -> Aggregate:
        """The robust mean, cut to `rank`; truncation error against the robust mean itself.

        Raises:
            BadRound: nothing was added, too few for the bound, or more look hostile than it.
        """
        self._layout.require_some()
        n = len(self._kept)
        bound = int(n * HOSTILE_SHARE) if self._max_hostile is None else self._max_hostile
        if n <= 2 * bound:
            raise BadRound(
                f"{n} updates cannot bear {bound} hostile ones; a robust mean needs more than twice"
                " the bound"
            )
        self._kept.sort(key=lambda kept: kept[0].client)  # one result whoever answers first
        gram_NN = change_gram([u.state for u, _ in self._kept], self._start)
        self.diagnosis = diagnose([u.client for u, _ in self._kept], gram_NN)
        refuse_above(self.diagnosis, max_hostile=bound)
        return self._combine(self._kept, gram_NN, max_hostile=bound, rank=rank)

    @abstractmethod
    def _combine(
        self,
        kept: Sequence[tuple[Update, float]],
        gram_NN: Doubles,
        *,
        max_hostile: int,
        rank: int,
    ) -> Aggregate:
        """The aggregate of updates in order of clients' names."""


class ByCoordinate(Kept):
    """A robust mean of each coordinate of the products; weights play no part in it.

    A hostile device would claim many examples. Dense, a module and some rows at a time.
    """

    def _combine(
        self,
        kept: Sequence[tuple[Update, float]],
        gram_NN: Doubles,  # noqa: ARG002 the neighbours of a coordinate are its own
        *,
        max_hostile: int,
        rank: int,
    ) -> Aggregate:
        modules, lost, whole = {}, 0.0, 0.0
        for name in self._layout.shapes:
            parts = [u.state.modules[name] for u, _ in kept]
            done = cut_dense(self._middle(parts, max_hostile), rank)
            modules[name] = done.factors
            lost, whole = lost + done.error**2, whole + done.norm**2
        return self._layout.aggregate(
            AdapterState(base_digest=self._layout.base_digest, modules=modules),
            truncation_error=float(np.sqrt(lost / whole)) if whole > 0.0 else 0.0,
        )

    @abstractmethod
    def _middle(self, parts: Sequence[Factors], max_hostile: int) -> FloatArray:
        """The robust mean of one module, dense."""
