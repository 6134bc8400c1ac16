"""The protocols of tailoring; `deploy.py` calls them in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadPlan
from floe.tailoring.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a plan costs on a device; `source` says "measured" or "table" (modelled).

    `memory_bytes` = weights + KV cache at the asked context + room for adapters. `energy_mj` is
    per decoded token, None where nothing is known.
    """

    prefill_ms: float
    decode_ms: float
    memory_bytes: int
    energy_mj: float | None = None
    source: str = "table"


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What must hold (all together); None = no limit (bug-log D16)."""

    memory_bytes: int | None = None
    decode_ms: float | None = None
    prefill_ms: float | None = None
    energy_mj: float | None = None
    parameters: int | None = None
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raises BadPlan for a limit that is no finite number, 0 or more."""
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise BadPlan(f"the budget {name} cannot be {value}; give a number, 0 or more")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One evaluated plan: perplexity on calibration text, its cost, and CLONE's score (eq. 1)."""

    plan: Plan
    perplexity: float
    cost: Cost
    score: float


def refuse_unlimited(budgets: Budgets) -> None:
    """Raise BadPlan where nothing is limited: the best plan would be the uncut model."""
    if all(value is None for value in asdict(budgets).values()):
        raise BadPlan(
            "no limit is given, so nothing would be cut; give one with --latency-ratio, or to "
            "floe tailor profile with --memory-mb or --slo-ms"
        )


class Search(Protocol):
    """Proposes plans. Ask and tell, so that every search gets the same number of evaluations.

    Whatever is asked keeps the budgets of the space it was made with: exactly, not on average.
    """

    name: str

    def ask(self) -> Plan:
        """A plan inside the budgets, not evaluated before as far as the space allows."""

    def tell(self, trial: Trial) -> None:
        """What an asked plan (or a seed plan from elsewhere) came to."""


class CostModel(Protocol):
    """What a plan costs without building it."""

    def cost(self, plan: Plan) -> Cost:
        """The cost on the profiled device."""


class Quality(Protocol):
    """How good a plan's model is on calibration text."""

    def perplexity(self, plan: Plan) -> float:
        """Perplexity after pruning by the plan, without recovery."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerImportance:
    """Importance of one layer's groups, larger = keep.

    `kv_K` per KV head, `q_KG` per query head within its KV head, `ffn_F` per FFN channel, `block`
    of the whole layer, `attention` and `ffn` of its halves.
    """

    kv_K: NDArray[np.float64]
    q_KG: NDArray[np.float64]
    ffn_F: NDArray[np.float64]
    attention: float
    ffn: float
    block: float


class Importance(Protocol):
    """A pruning criterion: LLM-Pruner's Taylor, Wanda-sp, FLAP, magnitude, random, ShortGPT."""

    name: str

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer, on the calibration text it was made with."""

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on, for the report."""
