"""The clairvoyant optimum: least joules for jobs whose lengths and arrivals are known beforehand.

In a conversation each job stands alone. In a queue it is dynamic programming over the jobs in
order: the state is how much later than at full speed the board gets free, in bins. A choice is a
job's prefill setting and how its tokens share two neighbouring settings of the lower convex hull
of (time, energy). Switching is free here and times are rounded down to bins, so the result is a
bound from below. Missed goals are free only where full speed misses them too.

Legend: S settings, B bins of delay, O options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from floe.power.boards.model import BoardModel, Vector
from floe.power.simulate import BLOCK_TOKENS
from floe.power.workload import Job

_BINS = 160
_MIXES = 12
_MISSED_J = 1e12


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Joules of serving, and the shares of jobs that miss their goals even so."""

    energy_j: float
    violation_ttft: float
    violation_tpot: float


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Ways to serve one job: first token after `first_ms_O`, done after `total_ms_O`."""

    first_ms_O: Vector
    total_ms_O: Vector
    energy_O: Vector
    late_tokens: bool


def optimum(model: BoardModel, jobs: Sequence[Job], *, bins: int = _BINS) -> Optimum:
    """The least energy that meets every goal which full speed meets."""
    if not jobs:
        return Optimum(energy_j=0.0, violation_ttft=0.0, violation_tpot=0.0)
    options = [_options(model, job) for job in jobs]
    if all(job.arrival_s is None for job in jobs):
        return _apart(jobs, options)
    fast_ms = np.array([o.total_ms_O.min() for o in options])
    free_ms = _full_speed(jobs, fast_ms)
    width_ms = max(float(np.median(fast_ms)) * 8.0 / bins, 1e-6)
    energy_B = np.full(bins, np.inf)
    energy_B[0] = 0.0
    late_first = 0
    for n, (job, option) in enumerate(zip(jobs, options, strict=True)):
        arrival_ms = 1000 * (job.arrival_s or 0.0)
        earliest_ms = max(arrival_ms, free_ms[n])
        delayed_B = np.maximum(arrival_ms, free_ms[n] + width_ms * np.arange(bins))
        due_ms = arrival_ms + job.goals.ttft_ms
        first_BO = delayed_B[:, None] + option.first_ms_O[None, :]
        missed_BO = first_BO > due_ms + width_ms  # rounding down must not cost a goal
        if earliest_ms + option.first_ms_O.min() > due_ms:
            late_first += 1
            missed_BO = np.zeros_like(missed_BO)
        end_BO = delayed_B[:, None] + option.total_ms_O[None, :]
        bin_BO = np.floor((end_BO - free_ms[n + 1]) / width_ms).astype(np.int64)
        bin_BO = np.clip(bin_BO, 0, bins - 1)
        cost_BO = energy_B[:, None] + option.energy_O[None, :] + _MISSED_J * missed_BO
        energy_B = np.full(bins, np.inf)
        np.minimum.at(energy_B, bin_BO.ravel(), cost_BO.ravel())
    best = float(energy_B.min())
    return Optimum(
        energy_j=best % _MISSED_J if best >= _MISSED_J else best,
        violation_ttft=(late_first + int(best // _MISSED_J)) / len(jobs),
        violation_tpot=float(np.mean([o.late_tokens for o in options])),
    )


def _apart(jobs: Sequence[Job], options: Sequence[_Options]) -> Optimum:
    """Each job by itself."""
    energy_j, late = 0.0, 0
    for job, option in zip(jobs, options, strict=True):
        in_time_O = option.first_ms_O <= job.goals.ttft_ms
        late += not in_time_O.any()
        allowed_O = in_time_O if in_time_O.any() else option.first_ms_O == option.first_ms_O.min()
        energy_j += float(option.energy_O[allowed_O].min())
    return Optimum(
        energy_j=energy_j,
        violation_ttft=late / len(jobs),
        violation_tpot=float(np.mean([o.late_tokens for o in options])),
    )


def _full_speed(jobs: Sequence[Job], fast_ms: Vector) -> Vector:
    """When the board is free for each job, and after the last, at full speed."""
    free = [0.0]
    for job, ms in zip(jobs, fast_ms, strict=True):
        free.append(max(free[-1], 1000 * (job.arrival_s or 0.0)) + float(ms))
    return np.array(free)


def _options(model: BoardModel, job: Job) -> _Options:
    """Every prefill setting with every mix of decode settings that meets the token goal."""
    prefill_ms = model.prefill_ms(job.prompt_tokens)
    prefill_j = prefill_ms * model.prefill_w_S / 1000
    decode = _decode(model, job)
    late = not decode
    if late:  # no setting meets the goal: the fastest it is
        times, joules = _whole(model, job)
        fastest = int(np.argmin(times))
        decode = [(float(times[fastest]), float(joules[fastest]))]
    keep = _pareto(prefill_ms, prefill_j)
    first = np.repeat(prefill_ms[keep], len(decode))
    joules = np.repeat(prefill_j[keep], len(decode))
    return _Options(
        first_ms_O=first,
        total_ms_O=first + np.tile([ms for ms, _ in decode], len(keep)),
        energy_O=np.repeat(prefill_j[keep], len(decode))
        + np.tile([j for _, j in decode], len(keep)),
        late_tokens=late,
    )


def _whole(model: BoardModel, job: Job) -> tuple[Vector, Vector]:
    """Time and energy (S,) of all tokens behind the first at one setting."""
    done, ms_S = 1, np.zeros(model.n_settings)
    while done < job.output_tokens:
        tokens = min(BLOCK_TOKENS, job.output_tokens - done)
        ms_S = ms_S + tokens * model.decode_ms(job.prompt_tokens + done)
        done += tokens
    return ms_S, ms_S * model.decode_w_S / 1000


def _decode(model: BoardModel, job: Job) -> list[tuple[float, float]]:
    """(milliseconds, joules) of mixes on the lower hull whose mean token meets the goal."""
    if job.output_tokens <= 1:
        return [(0.0, 0.0)]
    ms_S, joules_S = _whole(model, job)
    most_ms = job.goals.tpot_ms * (job.output_tokens - 1)
    hull = lower_hull(ms_S, joules_S)
    points = [(float(ms_S[s]), float(joules_S[s])) for s in hull]
    mixes = list(points)
    for (t0, e0), (t1, e1) in pairwise(points):
        shares = [k / _MIXES for k in range(1, _MIXES)]
        if t0 < most_ms < t1:
            shares.append((most_ms - t0) / (t1 - t0))
        mixes += [(t0 + x * (t1 - t0), e0 + x * (e1 - e0)) for x in shares]
    return [(t, e) for t, e in mixes if t <= most_ms * (1 + 1e-9)]


def lower_hull(times_S: Vector, energies_S: Vector) -> list[int]:
    """Settings on the falling part of the lower convex hull, from the fastest on."""
    order = [int(s) for s in np.lexsort((energies_S, times_S))]
    hull: list[int] = []
    for s in order:
        if hull and energies_S[s] >= energies_S[hull[-1]]:
            continue
        while len(hull) > 1 and _is_above(times_S, energies_S, hull[-2], hull[-1], s):
            hull.pop()
        hull.append(s)
    return hull


def _is_above(t: Vector, e: Vector, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the line from a to c."""
    return bool((e[b] - e[a]) * (t[c] - t[a]) >= (e[c] - e[a]) * (t[b] - t[a]))


def _pareto(times_S: Vector, energies_S: Vector) -> list[int]:
    """Settings that no other beats in both."""
    kept: list[int] = []
    for s in np.lexsort((energies_S, times_S)):
        if not kept or energies_S[s] < energies_S[kept[-1]]:
            kept.append(int(s))
    return kept
