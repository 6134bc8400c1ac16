"""Requests for a simulated board: lengths and arrivals of published traces, goals by class.

Lengths are Azure's (conversations and code completions), pauses follow ServeGen's rates and
burstiness, scaled to the board. In a conversation a person asks again a pause after the answer
came. In a queue requests come when they come: a pause after the one before could have been done
at full speed, so a board that dawdles makes the next one wait. The first half of each trace is
for training and tuning, the second for evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from floe.power.base import Goals
from floe.power.boards.model import BoardModel

Part = Literal["train", "test"]
MOST_PROMPT_TOKENS = 2048
MOST_OUTPUT_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class ServiceClass:
    """Goals in multiples of what the board does at its fastest (`ttft` also has a constant)."""

    name: str
    ttft: float
    tpot: float
    source: Literal["conv", "code"]
    share: float


CLASSES = (
    ServiceClass(name="chat", ttft=2.0, tpot=1.6, source="conv", share=0.5),
    ServiceClass(name="code", ttft=1.5, tpot=1.25, source="code", share=0.3),
    ServiceClass(name="batch", ttft=6.0, tpot=3.0, source="conv", share=0.2),
)
_WAIT_SHARE = 0.5  # of a mean prefill: what a first token may wait behind others


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request to the simulated board. `arrival_s` None: `pause_s` after the last answer."""

    pause_s: float
    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int
    goals: Goals
    service: str


def workload(
    model: BoardModel,
    *,
    n: int,
    part: Part,
    seed: int,
    utilisation: float = 0.35,
    queue: bool = False,
) -> list[Job]:
    """`n` jobs in order. `utilisation` is the share of time the board is busy at its fastest."""
    rng = np.random.default_rng([seed, {"train": 0, "test": 1}[part]])
    services = rng.choice(len(CLASSES), size=n, p=[c.share for c in CLASSES])
    lengths = [_length(rng, CLASSES[k], part) for k in services]
    fast = model.fastest
    prefills = np.array([float(model.prefill_ms(p)[fast]) for p, _ in lengths])
    busy_ms = prefills + [float(model.decode_ms(p)[fast]) * o for p, o in lengths]
    pauses_s = _pauses(rng, n, mean_s=_busy_s(busy_ms) * (1 / utilisation - 1), part=part)
    arrivals_s = np.cumsum(pauses_s + np.concatenate([[0.0], busy_ms[:-1]]) / 1000)
    wait_ms = _WAIT_SHARE * float(prefills.mean())
    return [
        Job(
            pause_s=float(pause),
            arrival_s=float(arrival) if queue else None,
            prompt_tokens=prompt,
            output_tokens=output,
            goals=Goals(
                ttft_ms=CLASSES[k].ttft * float(prefill) + wait_ms,
                tpot_ms=CLASSES[k].tpot * float(model.decode_ms(prompt)[fast]),
            ),
            service=CLASSES[k].name,
        )
        for k, (prompt, output), prefill, pause, arrival in zip(
            services, lengths, prefills, pauses_s, arrivals_s, strict=True
        )
    ]


def _length(rng: np.random.Generator, service: ServiceClass, part: Part) -> tuple[int, int]:
    rows: Sequence[Sequence[int]] = traces()[service.source]
    half = len(rows) // 2
    prompt, output = rows[int(rng.integers(half)) + (half if part == "test" else 0)]
    return min(max(prompt, 1), MOST_PROMPT_TOKENS), min(max(output, 2), MOST_OUTPUT_TOKENS)


def _busy_s(busy_ms: Any) -> float:
    return float(busy_ms.mean()) / 1000


def _pauses(rng: np.random.Generator, n: int, *, mean_s: float, part: Part) -> Any:
    """Seconds between an answer and the next question: gamma, each window's burstiness in turn."""
    told = traces()
    half = len(told["rates"]) // 2
    at = slice(half, None) if part == "test" else slice(0, half)
    rates, variation = np.array(told["rates"][at]), np.array(told["variation"][at])
    window = np.arange(n) * len(rates) // max(n, 1)
    shape = 1.0 / np.maximum(variation[window], 0.5) ** 2
    pace = rates.mean() / np.maximum(rates[window], 1e-3)
    gaps = rng.gamma(shape, 1.0 / shape) * pace
    return gaps * mean_s / gaps.mean()


@cache
def traces() -> dict[str, Any]:
    """What data/workload.json holds: lengths, rates, and where they are from."""
    text = (files("floe.power") / "data" / "workload.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
