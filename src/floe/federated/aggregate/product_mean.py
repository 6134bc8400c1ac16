"""The weighted mean of products B_i A_i, exact whatever the ranks: the default.

Clients' factors are stacked and multiplied a block at a time: one GEMM over thirty clients is many
times faster than thirty thin ones. While the stack is smaller than the dense layer it stays
factored, so that a round of few clients never forms a dense matrix.

Legend: R rank, C rows of a block, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from floe.federated.aggregate.layout import Layout
from floe.federated.base import Aggregate
from floe.federated.products import Cut, cut, cut_dense, scaled
from floe.federated.update import AdapterState, Factors, FloatArray, Update

DENSE_BYTES = 1 << 30  # above it sums are compressed: a 7B model's layers take 8 GB dense
_FLOAT_BYTES = 4


class Sum(Protocol):
    """A running sum of one layer's weighted products."""

    lost: float

    def add(self, factors: Factors, weight: float) -> None:
        """Add `weight * B A`."""

    def cut(self, rank: int) -> Cut:
        """The sum at `rank`."""


class ProductMean:
    """The mean of products, in constant memory.

    Memory is that of the dense layers, twice, when they fit into `dense_bytes` (the sums are then
    exact to float32, and `compression_error` is 0). Otherwise each layer keeps `keep_rank`
    directions; `compression_error` is then a bound: the sum of what every compression cut, over
    the norm of the sum.
    """

    name = "product-mean"

    def __init__(self, *, dense_bytes: int = DENSE_BYTES, keep_rank: int = 128) -> None:
        self._dense_bytes = dense_bytes
        self._keep_rank = keep_rank
        self._layout = Layout()
        self._sums: dict[str, Sum] = {}

    def add(self, update: Update, *, weight: float) -> None:
        """Take one update in; see `base.Aggregator`."""
        self._layout.check(update, weight=weight)
        self._layout.take(update, weight=weight)
        if not self._sums:
            self._sums = self._new_sums()
        for name, factors in update.state.modules.items():
            self._sums[name].add(factors, weight)

    def close(self, *, rank: int) -> Aggregate:
        """The weighted mean, cut to `rank`; see `base.Aggregator`."""
        self._layout.require_some()
        share = 1.0 / self._layout.total_weight
        modules, error, whole, lost = {}, 0.0, 0.0, 0.0
        for name, found in self._sums.items():
            done = found.cut(rank)
            modules[name] = scaled(done.factors, share)
            error, whole = error + done.error**2, whole + done.norm**2
            lost += found.lost**2
        return self._layout.aggregate(
            AdapterState(base_digest=self._layout.base_digest, modules=modules),
            truncation_error=float(np.sqrt(error / whole)) if whole > 0.0 else 0.0,
            compression_error=float(np.sqrt(lost / whole)) if whole > 0.0 else 0.0,
        )

    def _new_sums(self) -> dict[str, Sum]:
        shapes = self._layout.shapes
        bytes_dense = sum(o * i for o, i in shapes.values()) * _FLOAT_BYTES
        if bytes_dense <= self._dense_bytes:
            scratch = {shape: np.empty(shape, np.float32) for shape in set(shapes.values())}
            return {name: DenseSum(shape, scratch[shape]) for name, shape in shapes.items()}
        return {name: CompressedSum(shape, self._keep_rank) for name, shape in shapes.items()}


class DenseSum:
    """Exact: a block of stacked factors, and a dense matrix once the block overflows."""

    lost = 0.0

    def __init__(self, shape: tuple[int, int], scratch_OI: FloatArray) -> None:
        n_outputs, n_inputs = shape
        self._scratch_OI = scratch_OI
        capacity = max(16, n_outputs * n_inputs // (n_outputs + n_inputs))
        self._a_CI: FloatArray = np.empty((capacity, n_inputs), np.float32)
        self._bt_CO: FloatArray = np.empty((capacity, n_outputs), np.float32)
        self._used = 0
        self._total_OI: FloatArray | None = None

    def add(self, factors: Factors, weight: float) -> None:
        """Add `weight * B A`."""
        rank = factors.rank
        if rank > len(self._a_CI):
            self._flush()
            self._grow(rank)
        if self._used + rank > len(self._a_CI):
            self._flush()
        rows = slice(self._used, self._used + rank)
        self._a_CI[rows] = factors.a_RI
        np.multiply(factors.b_OR.T, np.float32(weight), out=self._bt_CO[rows])
        self._used += rank

    def cut(self, rank: int) -> Cut:
        """The sum at `rank`."""
        rows = slice(0, self._used)
        if self._total_OI is None and self._used:
            return cut(Factors(a_RI=self._a_CI[rows], b_OR=self._bt_CO[rows].T), rank)
        self._flush()
        assert self._total_OI is not None
        return cut_dense(self._total_OI, rank)

    def _flush(self) -> None:
        if not self._used:
            return
        bt_CO, a_CI = self._bt_CO[: self._used], self._a_CI[: self._used]
        if self._total_OI is None:
            self._total_OI = bt_CO.T @ a_CI
        else:
            np.matmul(bt_CO.T, a_CI, out=self._scratch_OI)
            self._total_OI += self._scratch_OI
        self._used = 0

    def _grow(self, rows: int) -> None:
        self._a_CI = np.empty((rows, self._a_CI.shape[1]), np.float32)
        self._bt_CO = np.empty((rows, self._bt_CO.shape[1]), np.float32)


class CompressedSum:
    """Factored throughout: the stack is cut to `keep` directions whenever it has twice as many."""

    def __init__(self, shape: tuple[int, int], keep: int) -> None:
        self._keep = min(keep, *shape)
        self._parts: list[Factors] = []
        self.lost = 0.0

    def add(self, factors: Factors, weight: float) -> None:
        """Add `weight * B A`."""
        self._parts.append(
            Factors(a_RI=factors.a_RI.copy(), b_OR=factors.b_OR * np.float32(weight))
        )
        if sum(f.rank for f in self._parts) > 2 * self._keep:
            done = cut(self._stack(), self._keep)
            self._parts, self.lost = [done.factors], self.lost + done.error

    def cut(self, rank: int) -> Cut:
        """The sum at `rank`."""
        return cut(self._stack(), rank)

    def _stack(self) -> Factors:
        return Factors(
            a_RI=np.concatenate([f.a_RI for f in self._parts]),
            b_OR=np.concatenate([f.b_OR for f in self._parts], axis=1),
        )
