"""Searches' worlds without a model: a score that is known everywhere."""

from __future__ import annotations

import math

import numpy as np

from floe.tailoring.base import Budgets, LayerImportance, Trial
from floe.tailoring.genes import Choices
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.plan import ModelShape, Plan
from floe.tailoring.rules import Rules
from floe.tailoring.score import PRINTED
from floe.tailoring.shapes import whole_plan
from floe.tailoring.space import Space


class World:
    """Layers that matter differently: log-perplexity is a sum over halves, drawn from a seed."""

    def __init__(
        self, *, n_layers: int = 8, seed: int = 0, ratio: float = 0.6, n_ffn: int = 256,
        rules: Rules | None = None, choices: Choices | None = None,
    ) -> None:  # fmt: skip
        self.shape = ModelShape(
            base_digest="w" * 64, n_layers=n_layers, width=64, n_kv_heads=2, q_per_kv=2,
            head_width=16, n_ffn=n_ffn, n_vocab=300,
        )  # fmt: skip
        self.costs = ModelledCost(shape=self.shape, bytes_per_ms=1e4, context_tokens=256)
        whole_ms = self.costs.cost(whole_plan(self.shape)).decode_ms
        self.space = Space(
            shape=self.shape, cost=self.costs, budgets=Budgets(decode_ms=ratio * whole_ms),
            rules=rules, choices=choices or Choices(ffn_step=32),
        )  # fmt: skip
        rng = np.random.default_rng(seed)
        self._attention, self._ffn = rng.gamma(0.7, 1.0, n_layers), rng.gamma(0.7, 1.0, n_layers)
        self.judged: list[Plan] = []

    def perplexity(self, plan: Plan) -> float:
        self.judged.append(plan)
        lost = sum(
            a * (1 - p.n_kv_heads * p.q_per_kv / 4) ** 2 + f * (1 - p.n_ffn / self.shape.n_ffn) ** 2
            for a, f, p in zip(self._attention, self._ffn, plan.layers, strict=True)
        )
        return math.exp(2.0 + lost)

    def trial(self, plan: Plan) -> Trial:
        cost, found = self.costs.cost(plan), self.perplexity(plan)
        return Trial(
            plan=plan, perplexity=found, cost=cost, score=PRINTED(found, cost, self.space.budgets)
        )

    def importances(self) -> tuple[LayerImportance, ...]:
        rng = np.random.default_rng(1)
        out = []
        for a, f in zip(self._attention, self._ffn, strict=True):
            q_KG = a * rng.gamma(2.0, 1.0, (2, 2))
            ffn = f * rng.gamma(0.5, 1.0, self.shape.n_ffn)
            out.append(
                LayerImportance(
                    kv_K=q_KG.sum(1), q_KG=q_KG, ffn_F=ffn, attention=a, ffn=f, block=a + f
                )
            )
        return tuple(out)
