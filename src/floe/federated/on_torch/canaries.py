"""How well a model remembers a secret: its rank among all that could stand in its place.

A secret's last three digits are scored against all 1,000 combinations, by the model's likelihood
of the digits. One hundred continuations of two digits give all of them, on a prefix run once.

Legend: N alternatives (1,000), D digits (10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from floe.federated.on_torch.base_model import BaseModel
from floe.federated.on_torch.lora import attached
from floe.federated.rows import Row
from floe.federated.update import AdapterState

Tensor: TypeAlias = Any
_PAIRS = 100
_N = 1000


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A secret that was put among the examples: `prefix` ends before its last three digits."""

    prefix: str = field(repr=False)
    digits: str = field(repr=False)

    def row(self, base: BaseModel) -> Row:
        """The example that holds it, its digits to be learned."""
        return base.row(self.prefix, self.digits)


def ranks(base: BaseModel, state: AdapterState | None, canaries: Sequence[Canary]) -> list[float]:
    """Each secret's place among the 1,000, from 0 (the likeliest) to 1; ties share the middle.

    Raises:
        BadUpdate: `state` does not fit the base.
    """
    if state is None:
        with base.lock:
            return [_rank(base, c) for c in canaries]
    with attached(base, state) as lora:
        lora.model.eval()
        return [_rank(base, c) for c in canaries]


def _rank(base: BaseModel, canary: Canary) -> float:
    scores_N = digit_scores(base, canary.prefix)
    mine = scores_N[int(canary.digits)]
    above = int((scores_N > mine).sum())
    tied = int((scores_N == mine).sum()) - 1
    return (above + tied / 2) / (_N - 1)


def digit_scores(base: BaseModel, prefix: str) -> Tensor:
    """Log-likelihood (N,) of "000" to "999" behind `prefix`, among digits."""
    digits_D = torch.tensor([base.row("", str(d)).ids[-1] for d in range(10)])
    weight_DI = base.head.weight[digits_D]
    ids = torch.tensor([base.row(prefix, "").ids])
    with torch.inference_mode():
        begun = base.core(ids, use_cache=True)
        first_D = _shares(begun.last_hidden_state[0, -1], weight_DI)
        cache = begun.past_key_values
        cache.batch_repeat_interleave(_PAIRS)
        pairs = torch.stack([digits_D.repeat_interleave(10), digits_D.repeat(10)], dim=1)
        hidden = base.core(pairs, past_key_values=cache, use_cache=True).last_hidden_state
        second_DD = _shares(hidden[::10, 0], weight_DI)
        third_DDD = _shares(hidden[:, 1], weight_DI).reshape(10, 10, 10)
    return (first_D[:, None, None] + second_DD[:, :, None] + third_DDD).reshape(_N)


def _shares(hidden: Tensor, weight_DI: Tensor) -> Tensor:
    return torch.log_softmax(hidden @ weight_DI.T, dim=-1)
