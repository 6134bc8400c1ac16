"""Server GPUs under a power limit: A40 and V100, fitted to published training runs.

The knob is the limit, so the steps of the domain "limit" are watts. The published workloads are
training epochs; prefill stands on BERT, which computes most, decode on DeepSpeech2, whose power
stays low: shapes are measured, the absolute time of a token is assumed.

Time against the limit L: t = t0 (1 + (w / (L - p0))^q). Power: (L^-r + p^-r)^(-1/r), the lower of
the limit and what the work draws, with a round corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from floe.power.base import Board, Domain
from floe.power.boards.data import measurements
from floe.power.boards.leastsq import fit
from floe.power.boards.model import BoardModel, Fitted, Thermal, Vector, grid

_PREFILL, _DECODE = "bert_base_uncased", "deepspeech2"
_LIMITS = {
    "a40": (150, 175, 200, 225, 250, 275, 300),
    "v100": (100, 125, 150, 175, 200, 225, 250),
}
_TOKEN_MS = {"a40": 12.0, "v100": 14.0}  # assumed, at the highest limit
_PROMPT_TOKEN_MS = {"a40": 0.20, "v100": 0.25}  # assumed
_IDLE_W = {"a40": 30.0, "v100": 35.0}  # assumed
_SWITCH_MS = 10.0  # assumed


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """How one network's time and power follow the limit."""

    time_K: Vector
    power_K: Vector

    def slower(self, limit_w: Vector) -> Vector:
        """Time over the time without a limit."""
        w, p0, q = self.time_K
        return 1.0 + (w / np.maximum(limit_w - p0, 1.0)) ** q  # type: ignore[no-any-return]

    def watts(self, limit_w: Vector) -> Vector:
        """Mean power."""
        p, r = self.power_K
        return (limit_w**-r + p**-r) ** (-1 / r)  # type: ignore[no-any-return]


@cache
def gpu_limit(name: str) -> Fitted:
    """The GPU "a40" or "v100".

    The shape is that of each network's largest batch. Errors are over every second limit, which a
    fit made for that purpose has not seen; what is served is fitted to all.
    """
    told = measurements("zeus_gpu")
    rows = [row for row in told["rows"] if row[0] == name]
    shapes, latency, power = {}, [], []
    for network in (_PREFILL, _DECODE):
        runs = _largest(rows, network)
        shapes[network] = _shape(runs)
        seen = _shape([_every_second(run) for run in runs])
        for run in runs:
            of_time, of_power = _errors(seen, run)
            latency += of_time
            power += of_power
    limits = tuple(float(x) for x in _LIMITS[name])
    domain = Domain(name="limit", steps_mhz=limits)
    limit_S = np.array(limits)
    pre, dec = shapes[_PREFILL], shapes[_DECODE]
    prefill_S = _PROMPT_TOKEN_MS[name] * pre.slower(limit_S) / pre.slower(limit_S[-1:])
    decode_S = _TOKEN_MS[name] * dec.slower(limit_S) / dec.slower(limit_S[-1:])
    model = BoardModel(
        board=Board(name=name, domains=(domain,), facts={"steps": "watts"}),
        settings_SD=grid((domain,)),
        prefill_ms=lambda tokens: prefill_S * max(tokens, 1) + 5.0,
        decode_ms=lambda context: decode_S * (1.0 + 1e-5 * context),
        prefill_w_S=pre.watts(limit_S),
        decode_w_S=dec.watts(limit_S),
        idle_w_S=np.full(len(limit_S), _IDLE_W[name]),
        switch_ms=_SWITCH_MS,
        thermal=Thermal(resistance_c_per_w=0.15, time_constant_s=30.0),
    )
    return Fitted(
        model=model,
        latency_mape=float(np.mean(latency)),
        power_mape=float(np.mean(power)),
        notes={"source": told["source"], "token_ms_assumed": _TOKEN_MS[name]},
    )


def _columns(run: Sequence[Sequence[Any]]) -> tuple[Vector, Vector, Vector]:
    limit, seconds, watts = (np.array([row[n] for row in run], float) for n in (4, 5, 6))
    return limit, seconds, watts


def _shape(runs: Sequence[Sequence[Sequence[Any]]]) -> _Shape:
    data = [_columns(run) for run in runs]

    def of_time(p: Vector) -> Vector:
        made = _Shape(time_K=p, power_K=p[:2])
        parts = []
        for limit, seconds, _ in data:
            shape = made.slower(limit)
            parts.append(np.log(shape / shape[-1] / (seconds / seconds[-1])))
        return np.concatenate(parts)

    def of_power(p: Vector) -> Vector:
        made = _Shape(time_K=p, power_K=p)
        return np.concatenate([np.log(made.watts(limit) / watts) for limit, _, watts in data])

    starts = [np.array(s) for s in ((60.0, 40.0, 2.0), (60.0, 70.0, 1.5), (90.0, 20.0, 4.0))]
    time_K = min((fit(of_time, s) for s in starts), key=lambda p: float((of_time(p) ** 2).sum()))
    return _Shape(time_K=time_K, power_K=fit(of_power, np.array([250.0, 4.0])))


def _largest(rows: Sequence[Sequence[Any]], network: str) -> list[list[Sequence[Any]]]:
    """Runs of the network's largest batch that has a whole range of limits, by optimizer."""
    of_network = [row for row in rows if row[1] == network]
    batch = max(row[2] for row in of_network)
    runs: dict[str, list[Sequence[Any]]] = {}
    for row in of_network:
        if row[2] == batch:
            runs.setdefault(row[3], []).append(row)
    return [sorted(run, key=lambda row: float(row[4])) for run in runs.values()]


def _every_second(run: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The first, third, ... and the last limit."""
    return [row for n, row in enumerate(run) if n % 2 == 0 or n == len(run) - 1]


def _errors(shape: _Shape, run: Sequence[Sequence[Any]]) -> tuple[list[float], list[float]]:
    """Over the limits that `_every_second` leaves out."""
    limit, seconds, watts = _columns(run)
    held = [n for n in range(len(run)) if n % 2 == 1 and n != len(run) - 1]
    made = shape.slower(limit)
    of_time = np.abs(made / made[-1] / (seconds / seconds[-1]) - 1)
    return list(of_time[held]), list(np.abs(shape.watts(limit) / watts - 1)[held])
