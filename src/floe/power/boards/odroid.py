"""Odroid-XU3: the Cortex-A15 cluster, fitted to measured runs of PARSEC, SPLASH-2 and cBench.

No language model was measured on it. Prefill stands on the program that computes most
(water_nsquared), decode on the one that waits for memory most (streamcluster): their times against
the clock and their power are measured, the absolute time of a token is assumed. Power is that of
the A15's own rail.

Time against the clock: t = t0 ((1 - s) / f + s), f in GHz, s the share that waits for memory.
Power: P = V^2 (c f + l), c of each program, l the leakage that all share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from floe.power.base import Board, Domain
from floe.power.boards.data import measurements
from floe.power.boards.leastsq import fit
from floe.power.boards.model import BoardModel, Fitted, Thermal, Vector, grid

CPU = Domain(name="cpu", steps_mhz=(1000, 1400, 1500, 1800, 2000))
_VOLTS = (0.9, 1.0, 1.0, 1.15, 1.3)  # measured, the mean where a clock ran at two
_PREFILL = ("splash2x.water_nsquared", 2)
_DECODE = ("parsec.streamcluster", 2)
_TOKEN_MS = 90.0  # assumed, at 2 GHz
_PROMPT_TOKEN_MS = 12.0  # assumed, at 2 GHz
_IDLE_SHARE = 0.12  # of the leakage and a stopped clock tree: assumed
_SWITCH_MS = 0.5  # assumed
_MIDDLE_MHZ = (1400, 1500)

Program = tuple[str, int]


@cache
def odroid_xu3() -> Fitted:
    """The A15 cluster.

    Both errors are over the middle clock of every program, which the fit has not seen.
    """
    told = measurements("odroid_xu3")
    by_program: dict[Program, list[list[Any]]] = {}
    for row in told["rows"]:
        by_program.setdefault((row[0], row[2]), []).append(row)
    waits = {name: _waits(rows) for name, rows in by_program.items()}
    latency = [_time_error(waits[name], rows) for name, rows in by_program.items()]
    leak, busy, power = _power(by_program)
    ghz_S, volts_S = np.array(CPU.steps_mhz) / 1000, np.array(_VOLTS)
    top = ghz_S[-1]

    def slower(program: Program) -> Vector:
        s = waits[program]
        made: Vector = ((1 - s) / ghz_S + s) / ((1 - s) / top + s)
        return made

    def watts(program: Program) -> Vector:
        made: Vector = volts_S**2 * (busy[program] * ghz_S + leak)
        return made

    decode_S, prefill_S = _TOKEN_MS * slower(_DECODE), _PROMPT_TOKEN_MS * slower(_PREFILL)
    model = BoardModel(
        board=Board(name="odroid-xu3", domains=(CPU,)),
        settings_SD=grid((CPU,)),
        prefill_ms=lambda tokens: prefill_S * max(tokens, 1),
        decode_ms=lambda context: decode_S * (1.0 + 1e-4 * context),
        prefill_w_S=watts(_PREFILL),
        decode_w_S=watts(_DECODE),
        idle_w_S=_IDLE_SHARE * volts_S**2 * (leak + 1.0),
        switch_ms=_SWITCH_MS,
        thermal=Thermal(resistance_c_per_w=9.0, time_constant_s=20.0),
    )
    return Fitted(
        model=model,
        latency_mape=float(np.mean(latency)),
        power_mape=float(np.mean(power)),
        notes={"source": told["source"], "token_ms_assumed": _TOKEN_MS},
    )


def _mean(rows: Sequence[Sequence[Any]], mhz: int, column: int) -> float:
    return float(np.mean([row[column] for row in rows if row[3] == mhz]))


def _ends(rows: Sequence[Sequence[Any]]) -> tuple[int, int]:
    clocks = [row[3] for row in rows]
    return min(clocks), max(clocks)


def _waits(rows: Sequence[Sequence[Any]]) -> float:
    """The share s, from the lowest and the highest clock alone."""
    low, high = _ends(rows)
    ratio = _mean(rows, low, 5) / _mean(rows, high, 5)
    f_low, f_high = low / 1000, high / 1000
    # t_low / t_high = ((1-s)/f_low + s) / ((1-s)/f_high + s), solved for s.
    share = (1 / f_low - ratio / f_high) / (1 / f_low - ratio / f_high - 1 + ratio)
    return float(np.clip(share, 0.0, 1.0))


def _time_error(s: float, rows: Sequence[Sequence[Any]]) -> float:
    low, _ = _ends(rows)
    middle = next(m for m in _MIDDLE_MHZ if any(r[3] == m for r in rows))
    scale = _mean(rows, low, 5) / ((1 - s) * 1000 / low + s)
    predicted = scale * ((1 - s) * 1000 / middle + s)
    return abs(predicted / _mean(rows, middle, 5) - 1)


def _power(
    by_program: dict[Program, list[list[Any]]],
) -> tuple[float, dict[Program, float], list[float]]:
    """The leakage, each program's c, and the error at each middle clock, left out of the fit."""
    programs = sorted(by_program)
    at = {name: n for n, name in enumerate(programs)}
    rows = [(at[name], r) for name in programs for r in by_program[name]]
    ends = [(n, r) for n, r in rows if r[3] not in _MIDDLE_MHZ]

    def columns(some: Sequence[tuple[int, Any]]) -> tuple[Any, Vector, Vector, Vector]:
        mhz, volts, watts = (np.array([r[c] for _, r in some], float) for c in (3, 7, 8))
        return np.array([n for n, _ in some]), mhz, volts, watts

    def predicted(p: Vector, n: Any, mhz: Vector, volts: Vector) -> Vector:
        made: Vector = volts**2 * (p[1:][n] * mhz / 1000 + p[0])
        return made

    n, mhz, volts, watts = columns(ends)
    start = np.array([0.1, *([0.6] * len(programs))])
    best = fit(lambda p: predicted(p, n, mhz, volts) / watts - 1, start)
    n, mhz, volts, watts = columns([(n, r) for n, r in rows if r[3] in _MIDDLE_MHZ])
    errors = np.abs(predicted(best, n, mhz, volts) / watts - 1)
    return float(best[0]), {name: float(best[1 + k]) for name, k in at.items()}, list(errors)
