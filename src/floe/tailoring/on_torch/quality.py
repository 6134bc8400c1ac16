"""Perplexity of a plan: the model is really cut, so that a smaller plan is judged faster.

Float32 throughout: bfloat16 is slower on CPUs without units for it (bug-log D08). Windows go
through in batches, the logits in slices, so that memory stays at some 100 MB beside the model.

Legend: B windows, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from floe.core.errors import BadPlan
from floe.tailoring.base import LayerImportance
from floe.tailoring.cut import make_cut
from floe.tailoring.on_torch.blocks import Model
from floe.tailoring.on_torch.importance import make_importance
from floe.tailoring.on_torch.prune import compensation, prune_in_memory
from floe.tailoring.on_torch.rounding import rounded
from floe.tailoring.plan import COMPENSATED, ModelShape, Plan
from floe.tailoring.statistics import Statistics

Tensor: TypeAlias = Any
_BATCH = 4
_SLICE_TOKENS = 256


class TorchQuality:
    """Implements base.Quality on windows of token ids; plans it has seen are not run again."""

    def __init__(
        self,
        *,
        model: Model,
        shape: ModelShape,
        statistics: Statistics,
        windows: Sequence[Sequence[int]],
        importances: Sequence[str] = ("taylor",),
        compensated: frozenset[str] = COMPENSATED,
        seed: int = 0,
        rounding: Callable[[Model, Mapping[str, str]], Model] = rounded,
    ) -> None:
        """`statistics` rank heads and channels by each of `importances`, measured once.

        Plans of a criterion among `compensated` get FLAP's biases. `windows` are of one length.
        `model` is shared, not changed. `rounding` gives it the plan's types.

        Raises:
            BadPlan: an unknown criterion. ValueError: windows of several lengths, or none.
        """
        if len({len(w) for w in windows}) != 1 or len(windows[0]) < 2:
            raise ValueError("quality needs windows of one length, two tokens or more")
        self._model, self.shape, self._statistics = model, shape, statistics
        self._ids_BT = torch.tensor([list(w) for w in windows])
        self._compensated, self._rounding = compensated, rounding
        self.importances: Mapping[str, tuple[LayerImportance, ...]] = {
            name: make_importance(name, statistics=statistics, seed=seed).measure()
            for name in importances
        }
        self._known: dict[str, float] = {}
        self.runs = 0

    @property
    def judged(self) -> Tensor:
        """What plans are judged on."""
        return self._ids_BT

    def perplexity(self, plan: Plan) -> float:
        """Perplexity of the cut model, without recovery; infinite where it computes no number.

        Raises:
            BadPlan: a plan of another model, or with a criterion that was not measured.
        """
        key = plan_key(plan)
        if key not in self._known:
            self._known[key] = perplexity(self.build(plan), self._ids_BT)
            self.runs += 1
        return self._known[key]

    def build(self, plan: Plan) -> Model:
        """The cut model; weights that are whole are the original's own.

        Raises:
            BadPlan: as for `perplexity`.
        """
        if plan.importance not in self.importances:
            raise BadPlan(
                f"the plan cuts by {plan.importance!r}, which was not measured; "
                f"measured: {', '.join(self.importances)}"
            )
        cut = make_cut(plan, self.shape, self.importances[plan.importance])
        bias = (
            compensation(self._model, cut, self._statistics)
            if plan.importance in self._compensated
            else None
        )
        small = prune_in_memory(self._model, cut, compensation=bias)
        return self._rounding(small, plan.quants)


def plan_key(plan: Plan) -> str:
    """A text that is the same for plans that give the same model."""
    layers = ",".join(
        f"{p.n_kv_heads}x{p.q_per_kv if p.n_kv_heads else 0}+{p.n_ffn}" for p in plan.layers
    )
    quants = ",".join(f"{g}={t}" for g, t in sorted(plan.quants.items()))
    return f"{plan.base_digest}|{layers}|{quants}|{plan.importance}"


def perplexity(model: Model, windows_BT: Tensor) -> float:
    """exp of the mean loss over all tokens but the first of each window."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for ids_BT in windows_BT.split(_BATCH):
            states_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
            states = states_BTD[:, :-1].reshape(-1, states_BTD.shape[-1])
            targets = ids_BT[:, 1:].reshape(-1)
            for part, wanted in zip(
                states.split(_SLICE_TOKENS), targets.split(_SLICE_TOKENS), strict=True
            ):
                logits_TV = model.lm_head(part).float()
                total += float(
                    torch.nn.functional.cross_entropy(logits_TV, wanted, reduction="sum")
                )
            count += len(targets)
    mean = total / count
    return math.exp(mean) if math.isfinite(mean) and mean < 700 else math.inf
