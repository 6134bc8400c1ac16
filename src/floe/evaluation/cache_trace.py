"""A trace of requests for adapters: who is asked for when, how big it is, what a load costs."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadRequest

RANKS = (4, 8, 16, 32, 64)
BYTES_PER_RANK = 614_528
"""SmolLM2-135M, all linear layers, F16: the shipped rank-16 adapters have 9.8 MB."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in order of time; T requests, K keys.

    `at_s_T` seconds, `key_T` indices into `names`, `bytes_K` and `load_ms_K` one for each key.
    """

    name: str
    names: tuple[str, ...]
    at_s_T: NDArray[np.float64]
    key_T: NDArray[np.int64]
    bytes_K: NDArray[np.int64]
    load_ms_K: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.key_T)

    @property
    def total_bytes(self) -> int:
        """All adapters together."""
        return int(self.bytes_K.sum())

    def part(self, start: int, stop: int) -> Trace:
        """Requests `start` up to `stop`; the keys stay the same."""
        return replace(self, at_s_T=self.at_s_T[start:stop], key_T=self.key_T[start:stop])


def make_trace(
    name: str,
    at_s: Sequence[float] | NDArray[np.float64],
    key: Sequence[int] | NDArray[np.int64],
    *,
    bytes_K: NDArray[np.int64],
    load_ms_K: NDArray[np.float64],
) -> Trace:
    """A trace whose keys are numbers; the times are put in order."""
    at_s_T, key_T = np.asarray(at_s, dtype=np.float64), np.asarray(key, dtype=np.int64)
    order = np.argsort(at_s_T, kind="stable")
    return Trace(
        name=name, names=tuple(f"a{i:04d}" for i in range(len(bytes_K))), at_s_T=at_s_T[order],
        key_T=key_T[order], bytes_K=bytes_K, load_ms_K=load_ms_K,
    )  # fmt: skip


def read_csv(path: Path, *, load_ms_of: LoadTimes) -> Trace:
    """A trace from `time,key,size[,load_ms]`: seconds, name, bytes, milliseconds.

    A header line is skipped. Where load_ms is missing it is what the measured table says. The size
    and the load time of a key are those of its first line.

    Raises:
        BadRequest: a line is not of that form, or there is none.
    """
    times: list[float] = []
    keys: list[int] = []
    index: dict[str, int] = {}
    sizes: list[int] = []
    loads: list[float] = []
    with path.open(newline="", encoding="utf-8") as file:
        for n, row in enumerate(csv.reader(file), start=1):
            if not row or (n == 1 and row[0].strip().lower() in ("time", "time_s", "at_s")):
                continue
            at_s, key, size, load_ms = _parsed(row, path, n)
            times.append(at_s)
            if key not in index:
                index[key] = len(index)
                sizes.append(size)
                loads.append(load_ms_of(size) if load_ms is None else load_ms)
            keys.append(index[key])
    if not times:
        raise BadRequest(f"{path} holds no requests; lines must be time,key,size[,load_ms]")
    at_s_T = np.array(times)
    order = np.argsort(at_s_T, kind="stable")
    return Trace(
        name=path.stem, names=tuple(index), at_s_T=at_s_T[order], key_T=np.array(keys)[order],
        bytes_K=np.array(sizes, dtype=np.int64), load_ms_K=np.array(loads),
    )  # fmt: skip


def _parsed(row: list[str], path: Path, n: int) -> tuple[float, str, int, float | None]:
    try:
        at_s, key, size = float(row[0]), row[1].strip(), int(float(row[2]))
        load_ms = float(row[3]) if len(row) > 3 and row[3].strip() else None
        if not key or size <= 0 or not math.isfinite(at_s):
            raise ValueError
        if load_ms is not None and not (math.isfinite(load_ms) and load_ms >= 0):
            raise ValueError
    except (ValueError, IndexError, OverflowError):
        raise BadRequest(
            f"{path}, line {n}: must be time,key,size[,load_ms] with seconds, a name, bytes > 0 "
            "and milliseconds"
        ) from None
    return at_s, key, size, load_ms


@dataclass(frozen=True, kw_only=True)
class LoadTimes:
    """Measured load times: milliseconds for each of some sizes, straight lines between them."""

    bytes_M: tuple[int, ...]
    load_ms_M: tuple[float, ...]

    def __call__(self, n_bytes: float) -> float:
        """Milliseconds to load `n_bytes`; beyond the table in proportion to its ends."""
        first, last = self.bytes_M[0], self.bytes_M[-1]
        if n_bytes >= last:
            return self.load_ms_M[-1] * n_bytes / last
        return float(np.interp(max(n_bytes, first), self.bytes_M, self.load_ms_M))
