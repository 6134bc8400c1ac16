"""A rough board made from the clocks that a machine offers: where learning begins, no more.

Every constant is assumed: time falls with the clocks (half of decoding with the memory's, where
there is one), power is a third static and rises with the cube of each clock. What the machine
really does is learned step by step (`controllers.online`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from floe.power.base import Board, Domain
from floe.power.boards.model import BoardModel, Vector, grid

MOST_STEPS = 8
_TOKEN_MS, _PROMPT_TOKEN_MS = 20.0, 2.0
_WATTS, _STATIC = 10.0, 0.33
_IDLE = 0.25  # of what moves with the clocks
_MEMORY = {"prefill": 0.2, "decode": 0.5}
_SWITCH_MS = 1.0


def generic(domains: Sequence[Domain]) -> BoardModel:
    """The rough model over `domains`, at most eight steps of each; there must be one or more."""
    thin = tuple(_thinned(domain) for domain in domains)
    settings_SD = grid(thin)
    share_SD = settings_SD / settings_SD.max(axis=0)
    slow = {
        phase: (_weights(thin, memory) / share_SD).sum(axis=1) for phase, memory in _MEMORY.items()
    }
    moving_S = (share_SD**3).mean(axis=1)
    busy_w_S: Vector = _WATTS * (_STATIC + (1 - _STATIC) * moving_S)
    return BoardModel(
        board=Board(name="generic", domains=thin, facts={"source": "assumed"}),
        settings_SD=settings_SD,
        prefill_ms=lambda n: _PROMPT_TOKEN_MS * n * slow["prefill"],
        decode_ms=lambda _context: _TOKEN_MS * slow["decode"],
        prefill_w_S=busy_w_S,
        decode_w_S=busy_w_S,
        idle_w_S=_WATTS * (_STATIC + _IDLE * (1 - _STATIC) * moving_S),
        switch_ms=_SWITCH_MS,
    )


def _thinned(domain: Domain) -> Domain:
    """The domain with few steps, its ends among them."""
    low, high = domain.steps_mhz[0], domain.steps_mhz[-1]
    if domain.is_continuous:
        steps = tuple(float(x) for x in np.linspace(low, high, MOST_STEPS if high > low else 1))
    elif len(domain.steps_mhz) > MOST_STEPS:
        picks = np.linspace(0, len(domain.steps_mhz) - 1, MOST_STEPS).round().astype(int)
        steps = tuple(domain.steps_mhz[k] for k in picks)
    else:
        steps = domain.steps_mhz
    return replace(domain, steps_mhz=steps, is_continuous=False)


def _weights(domains: Sequence[Domain], memory: float) -> Vector:
    """What share of a step's time goes with each clock (D,)."""
    is_memory = np.array([d.name == "emc" for d in domains])
    if not is_memory.any() or is_memory.all():
        return np.full(len(domains), 1.0 / len(domains))
    shares: Vector = np.where(
        is_memory, memory / is_memory.sum(), (1 - memory) / (~is_memory).sum()
    )
    return shares
