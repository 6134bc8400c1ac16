"""One training run in the model's own arrays: optimizer, steps done, losses, and its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from floe.core.errors import BadUpdate
from floe.core.schedule import schedule
from floe.federated.checkpoints import Checkpoint
from floe.federated.on_torch.lora import Attached
from floe.federated.on_torch.steps import LossOf, StepRule, pull_back
from floe.federated.rows import Row
from floe.federated.settings import TrainSettings

Tensor: TypeAlias = Any


class Run:
    """AdamW on the factors that `settings.mode` trains in this round."""

    def __init__(
        self, lora: Attached, settings: TrainSettings, *, digest: str, seed: int, round_number: int
    ) -> None:
        """`digest` names all that decides the run's bits."""
        self.losses: list[float | None] = []
        self._lora, self._settings = lora, settings
        self.digest, self._seed = digest, seed
        self._start = {n: (_copy(lora.a[n]), _copy(lora.b[n])) for n in lora.a}
        self._weights = _trained(lora, settings, round_number)
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=settings.learning_rate, weight_decay=0.0
        )

    @property
    def done(self) -> int:
        """Steps done, those before a resumption counted."""
        return len(self.losses)

    def step(self, batch: Sequence[Row], rule: StepRule, loss_of: LossOf) -> float | None:
        """One optimizer step; the loss of its batch, None where `rule` does not show it.

        Raises:
            BadUpdate: the loss is not finite; the factors are as before the step.
        """
        s, at = self._settings, self.done
        self._lora.model.train()
        loss = rule.fill(self._lora, self._weights, batch, loss_of, step=at, seed=self._seed)
        if loss is not None and not math.isfinite(loss):
            raise BadUpdate(
                f"the loss is not finite at step {at + 1} of {s.steps}; lower the learning rate "
                f"(now {s.learning_rate:g}) or check the start",
                reason="not-finite",
            )
        if s.proximal > 0.0:
            pull_back(self._lora, self._start, strength=s.proximal, space=s.proximal_space)
        warmup_steps = min(s.warmup_steps, s.steps - 1)
        for group in self._optimizer.param_groups:
            group["lr"] = s.learning_rate * schedule(at, steps=s.steps, warmup_steps=warmup_steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)
        return loss

    def checkpoint(self) -> Checkpoint:
        """The run as it stands between two steps."""
        arrays = {key: weight.detach().numpy() for key, weight in _named(self._lora).items()}
        for n, weight in enumerate(self._weights):
            moments = self._optimizer.state.get(weight)
            for key, field in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                array = moments[field] if moments else torch.zeros_like(weight)
                arrays[f"{key}.{n}"] = array.detach().numpy()
        facts = {"losses": self.losses}
        return Checkpoint(run=self.digest, step=self.done, arrays=arrays, facts=facts)

    def resume(self, found: Checkpoint) -> None:
        """Go on from a checkpoint of the same digest."""
        with torch.no_grad():
            for key, weight in _named(self._lora).items():
                weight.copy_(torch.from_numpy(found.arrays[key]))
        for n, weight in enumerate(self._weights):
            self._optimizer.state[weight] = {
                "step": torch.tensor(float(found.step)),
                "exp_avg": torch.from_numpy(found.arrays[f"m.{n}"]),
                "exp_avg_sq": torch.from_numpy(found.arrays[f"v.{n}"]),
            }
        self.losses = list(found.facts["losses"])


def _trained(lora: Attached, settings: TrainSettings, round_number: int) -> list[Tensor]:
    """The factors that this round trains; the others are frozen."""
    mode, odd = settings.mode, round_number % 2 == 1
    a = mode == "both" or (mode == "alternate" and odd)
    b = mode != "alternate" or not odd
    for side, wanted in ((lora.a, a), (lora.b, b)):
        for weight in side.values():
            weight.requires_grad_(wanted)
    return [w for w in _named(lora).values() if w.requires_grad]


def _named(lora: Attached) -> dict[str, Tensor]:
    return {f"a.{n}": w for n, w in lora.a.items()} | {f"b.{n}": w for n, w in lora.b.items()}


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone()
