"""Jetson Orin Nano Super, fitted to published runs, and Orin NX, carried over from it.

Time of a step: a roofline with a round corner, ((a / f_gpu)^q + (b / f_mem)^q)^(1/q).
Power: p0 + m f_mem + busy g f_gpu + activity k f_gpu^3 + e / time. Activity is the share of a step
that the GPU computes, f^3 is C V^2 f with a voltage that rises with the clock (NVIDIA publishes
none), the last term is the memory's traffic. Prefill is measured at 64 tokens; longer prompts are
carried over: computing grows with the tokens, the weights are read once for 512 of them, and
activations are taken to move as much again in such a batch (assumed).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.power.base import Board, Domain
from floe.power.boards.data import measurements
from floe.power.boards.leastsq import fit, mape
from floe.power.boards.model import BoardModel, Fitted, Thermal, Vector, grid

GPU = Domain(name="gpu", steps_mhz=(306, 408, 510, 612, 714, 816, 918, 1020))
MEMORY = Domain(name="emc", steps_mhz=(204, 665, 2133, 3199))
NX_GPU = Domain(name="gpu", steps_mhz=(306, 408, 510, 612, 714, 816, 918))
_NX_MEMORY_MHZ = 3199.0
Index = NDArray[np.int64]
_PROMPT = 64
_BATCH = 512
_BUSY_PERCENT = 60
_SWITCH_MS = 2.0  # assumed: a devfreq write with its settling; measured on a board at the start
_SEED = 0
_HELD_OUT = 0.25
_STARTS = ((2e4, 3e4, 2.0), (5e4, 5e4, 1.3), (2e4, 3e4, 5.0))


@dataclass(frozen=True, kw_only=True)
class _Roofline:
    """Milliseconds times MHz of computing and of memory, and how sharp the corner is."""

    compute: float
    memory: float
    sharpness: float

    def ms(
        self, gpu_mhz: Vector, emc_mhz: Vector, *, compute: float = 1.0, memory: float = 1.0
    ) -> Vector:
        """Milliseconds; `compute` and `memory` scale the work."""
        q = self.sharpness
        parts = (compute * self.compute / gpu_mhz) ** q + (memory * self.memory / emc_mhz) ** q
        made: Vector = parts ** (1 / q)
        return made


@cache
def orin_nano() -> Fitted:
    """The Orin Nano Super 8 GB running Qwen2.5-1.5B Q4_K_M, as published.

    `latency_mape` is over held-out points of four workloads on the grid of clocks and over each
    SLM setting predicted from the others; `power_mape` over held-out one-second samples.
    """
    told = measurements("orin_nano")
    slm = told["slm"]
    gpu, emc = (np.array([run[k] for run in slm], float) for k in ("gpu_mhz", "emc_mhz"))
    decode_ms = np.array([np.median(run["decode_ms"]) for run in slm])
    prefill_ms = np.array([run["prefill_ms"] for run in slm])
    decode, prefill = _roofline(gpu, emc, decode_ms), _roofline(gpu, emc, prefill_ms)
    power_K, power_mape, left_out = _power(told["power"], decode)
    errors = [*_grid_errors(told["grid"]), *_left_out(gpu, emc, decode_ms)]
    model = _model("orin-nano-super", (GPU, MEMORY), decode, prefill, power_K)
    return Fitted(
        model=model,
        latency_mape=float(np.mean(errors)),
        power_mape=power_mape,
        notes={
            "power_mape_left_out_runs": left_out,
            "decode_mape_fit": mape(decode_ms, decode.ms(gpu, emc)),
            "prefill_mape_fit": mape(prefill_ms, prefill.ms(gpu, emc)),
            "prefill_mape_left_out": float(np.mean(_left_out(gpu, emc, prefill_ms))),
            "source": told["source"],
        },
    )


@cache
def orin_nx() -> Fitted:
    """The Orin NX: its own GPU steps on the Nano's fitted physics, so nothing was checked."""
    told = measurements("orin_nano")
    slm = told["slm"]
    gpu, emc = (np.array([run[k] for run in slm], float) for k in ("gpu_mhz", "emc_mhz"))
    decode = _roofline(gpu, emc, np.array([np.median(run["decode_ms"]) for run in slm]))
    prefill = _roofline(gpu, emc, np.array([run["prefill_ms"] for run in slm]))
    power_K, _, _ = _power(told["power"], decode)
    memory = Domain(name="emc", steps_mhz=(_NX_MEMORY_MHZ,))
    model = _model("orin-nx", (NX_GPU, memory), decode, prefill, power_K)
    return Fitted(
        model=model,
        latency_mape=None,
        power_mape=None,
        notes={"source": "the clocks are the board's, the physics is carried over from orin-nano"},
    )


def _model(
    name: str, domains: tuple[Domain, ...], decode: _Roofline, prefill: _Roofline, power_K: Vector
) -> BoardModel:
    settings_SD = grid(domains)
    gpu_S, emc_S = settings_SD[:, 0], settings_SD[:, 1]

    @cache
    def prefill_ms(tokens: int) -> Vector:
        n = max(tokens, 1)
        reads = (math.ceil(n / _BATCH) + n / _BATCH) / (1 + _PROMPT / _BATCH)
        return prefill.ms(gpu_S, emc_S, compute=n / _PROMPT, memory=reads)

    decode_S: Vector = decode.ms(gpu_S, emc_S)
    return BoardModel(
        board=Board(name=name, domains=domains),
        settings_SD=settings_SD,
        prefill_ms=prefill_ms,
        decode_ms=lambda context: decode_S * (1.0 + 1.4e-5 * context),  # 0.6 % over 500 tokens
        prefill_w_S=_watts(power_K, gpu_S, emc_S, prefill, prefill_ms(_PROMPT)),
        decode_w_S=_watts(power_K, gpu_S, emc_S, decode, decode_S),
        idle_w_S=power_K[0] + power_K[1] * emc_S / 1000,
        switch_ms=_SWITCH_MS,
        thermal=Thermal(),
    )


def _roofline(gpu: Vector, emc: Vector, ms: Vector) -> _Roofline:
    def residuals(p: Vector) -> Vector:
        made = _Roofline(compute=p[0], memory=p[1], sharpness=p[2])
        return np.log(made.ms(gpu, emc) / ms)

    best = _best(residuals, _STARTS)
    return _Roofline(compute=best[0], memory=best[1], sharpness=best[2])


def _best(residuals: Callable[[Vector], Vector], starts: Sequence[Sequence[float]]) -> Vector:
    found = [fit(residuals, np.array(start)) for start in starts]
    return min(found, key=lambda p: float((residuals(p) ** 2).sum()))


def _left_out(gpu: Vector, emc: Vector, ms: Vector) -> list[float]:
    """The error of each setting when it is predicted from the others."""
    errors = []
    for k in range(len(ms)):
        rest = np.arange(len(ms)) != k
        made = _roofline(gpu[rest], emc[rest], ms[rest])
        errors.append(abs(float(made.ms(gpu[k], emc[k]) / ms[k]) - 1))
    return errors


def _grid_errors(rows: Sequence[Sequence[Any]]) -> list[float]:
    """Held-out points of each workload; a constant part is fitted beside the roofline."""
    rng = np.random.default_rng(_SEED)
    errors: list[float] = []
    for work in sorted({row[0] for row in rows}):
        points_N3 = np.array([row[1:4] for row in rows if row[0] == work], float)
        order = rng.permutation(len(points_N3))
        held, kept = np.split(points_N3[order], [round(_HELD_OUT * len(points_N3))])
        best = _best(
            lambda p, kept=kept: np.log(_with_constant(p, kept) / kept[:, 2]),  # type: ignore[misc]
            [(a / 3, b / 3, q, 1.0) for a, b, q in _STARTS],
        )
        errors += list(np.abs(_with_constant(best, held) / held[:, 2] - 1))
    return errors


def _with_constant(p: Vector, points_N3: Vector) -> Vector:
    made = _Roofline(compute=p[0], memory=p[1], sharpness=p[2])
    return np.asarray(p[3] + made.ms(points_N3[:, 0], points_N3[:, 1]))


def _power(rows: Sequence[Sequence[Any]], decode: _Roofline) -> tuple[Vector, float, float]:
    """Parameters (p0, m, g, k, e), the error on held-out samples, and on left-out runs."""
    used = [r for r in rows if r[3] > _BUSY_PERCENT or "idle" in r[0]]
    run = np.array([r[0] for r in used])
    gpu, emc, load, watts = (np.array([r[n] for r in used], float) for n in (1, 2, 3, 6))
    busy = load > _BUSY_PERCENT
    gpu = np.where(busy, gpu, GPU.steps_mhz[0])
    ms = decode.ms(gpu, emc)

    def predicted(p: Vector, at: Index) -> Vector:
        return _sum(p, gpu[at], emc[at], decode, ms[at], busy[at])

    def fitted(at: Index) -> Vector:
        weights = np.array([1 / np.sqrt((run[at] == r).sum()) for r in run[at]])
        return _best(
            lambda p: (predicted(p, at) / watts[at] - 1) * weights,
            [(3.0, 1.0, 1.0, 4.0, 10.0), (1.0, 0.3, 0.3, 1.2, 3.0)],
        )

    order = np.random.default_rng(_SEED).permutation(len(watts)).astype(np.int64)
    held, kept = np.split(order, [round(_HELD_OUT * len(watts))])
    power_K = fitted(kept)
    errors = []
    for name in sorted(set(run[busy])):
        there, rest = np.flatnonzero(run == name), np.flatnonzero(run != name)
        modelled = predicted(fitted(rest), there).mean()
        errors.append(abs(float(modelled / watts[there].mean()) - 1))
    return power_K, mape(watts[held], predicted(power_K, held)), float(np.mean(errors))


def _watts(p: Vector, gpu: Vector, emc: Vector, work: _Roofline, ms: Vector) -> Vector:
    return _sum(p, gpu, emc, work, ms, np.ones(len(gpu), bool))


def _sum(p: Vector, gpu: Vector, emc: Vector, work: _Roofline, ms: Vector, busy: Any) -> Vector:
    activity = np.where(busy, work.compute / gpu / ms, 0.0)
    traffic = np.where(busy, work.memory / ms / 1e4, 0.0)
    return (  # type: ignore[no-any-return]
        p[0]
        + p[1] * emc / 1000
        + busy * p[2] * gpu / 1000
        + activity * p[3] * (gpu / 1000) ** 3
        + p[4] * traffic
    )
