"""One optimizer step's pieces: which examples, which gradient, which rate, how near the start.

`StepRule` is where DP-SGD goes in: it draws the batches and forms the gradient, so that what is
accounted is what was done.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

import torch

from floe.federated.on_torch.lora import Attached
from floe.federated.rows import Row, batches, epochs

Tensor: TypeAlias = Any
# Rows to the loss of each answer token (N,) and the place of each row's first one.
LossOf = Callable[[Sequence[Row]], tuple[Tensor, list[int]]]


class StepRule(Protocol):
    """How a step's examples are drawn and its gradient is formed."""

    name: str

    def draw(self, rows: Sequence[Row], *, steps: int, seed: int) -> Iterator[list[Row]]:
        """The examples of each of `steps` steps, the same for the same seed; possibly empty."""

    def fill(
        self,
        lora: Attached,
        weights: Sequence[Tensor],
        batch: Sequence[Row],
        loss_of: LossOf,
        *,
        step: int,
        seed: int,
    ) -> float | None:
        """Set `.grad` of each of `weights` (None before) and return the mean loss of a token.

        The result depends on the arguments and the weights alone, so a run can resume at `step`.
        None: the batch was empty; or the loss is not to be shown.
        """


class MeanGradient:
    """The plain rule: the gradient of the mean answer token, clipped to a norm."""

    name = "mean"

    def __init__(self, *, batch: int, accumulate: int = 1, clip_norm: float | None = 1.0) -> None:
        """A step sees `batch` x `accumulate` examples, `batch` of them in memory at once."""
        self._batch, self._accumulate, self._clip_norm = batch, accumulate, clip_norm

    def draw(self, rows: Sequence[Row], *, steps: int, seed: int) -> Iterator[list[Row]]:
        """Batches of neighbours in length, every example once in a pass."""
        return islice(epochs(rows, self._batch * self._accumulate, seed), steps)

    def fill(
        self,
        lora: Attached,
        weights: Sequence[Tensor],
        batch: Sequence[Row],
        loss_of: LossOf,
        *,
        step: int,
        seed: int,
    ) -> float | None:
        """The same gradient whatever `accumulate` is: each answer token counts the same."""
        del lora, step, seed
        tokens, total = sum(r.n_answer for r in batch), 0.0
        for part in batches(batch, self._batch):
            loss = loss_of(part)[0].sum() / tokens
            loss.backward()
            total += loss.item()
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, self._clip_norm)
        return total


def pull_back(
    lora: Attached, start: Mapping[str, tuple[Tensor, Tensor]], *, strength: float, space: str
) -> None:
    """Add the gradient of FedProx's term, `strength` / 2 times the squared distance to the start.

    In "products" the distance is that of B A from where it started, which does not depend on how
    the factors share the scale; in "factors" it is that of A and of B, as FedProx on LoRA is often
    written. It needs no examples, so it costs no privacy.
    """
    with torch.no_grad():
        for name, (a0_RI, b0_OR) in start.items():
            a_RI, b_OR = lora.a[name], lora.b[name]
            if space == "factors":
                by_a, by_b = a_RI - a0_RI, b_OR - b0_OR
            else:
                by_b = b_OR @ (a_RI @ a_RI.T) - b0_OR @ (a0_RI @ a_RI.T)
                by_a = (b_OR.T @ b_OR) @ a_RI - (b_OR.T @ b0_OR) @ a0_RI
            for weight, by in ((a_RI, by_a), (b_OR, by_b)):
                if weight.grad is not None:
                    weight.grad.add_(by, alpha=strength)
