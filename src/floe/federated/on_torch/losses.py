"""The loss that training minimises and validation reports: of answer tokens alone, in nats.

Legend: N answer tokens of a batch, B its rows, T its padded width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from floe.federated.rows import Row, batches

Tensor: TypeAlias = Any


@dataclass(frozen=True, kw_only=True)
class AnswerLoss:
    """Means over all answer tokens and over each answer's first token (the decision)."""

    loss: float
    first_token_loss: float
    tokens: int
    rows: int


def answer_losses(core: Any, head: Any, batch: Sequence[Row]) -> tuple[Tensor, list[int]]:
    """Negative log-likelihood of each answer token (N,), and where each row's first one is.

    Rows are padded on the right, where causal attention makes padding harmless, and the output
    layer (a fifth of SmolLM2's weights) sees the answer positions only.
    """
    width = max(len(r.ids) for r in batch)
    ids_BT = torch.tensor([[*r.ids, *[0] * (width - len(r.ids))] for r in batch])
    hidden = core(ids_BT, use_cache=False).last_hidden_state
    picked = [hidden[i, len(r.ids) - r.n_answer - 1 : len(r.ids) - 1] for i, r in enumerate(batch)]
    targets_N = torch.tensor([t for r in batch for t in r.ids[-r.n_answer :]])
    logits = head(torch.cat(picked))
    starts = [sum(r.n_answer for r in batch[:i]) for i in range(len(batch))]
    return torch.nn.functional.cross_entropy(logits, targets_N, reduction="none"), starts


def mean_loss(core: Any, head: Any, rows: Sequence[Row], *, batch: int = 8) -> AnswerLoss:
    """The loss of all rows, each answer token counting the same.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("no rows to judge by")
    total, first, count = 0.0, 0.0, 0
    with torch.inference_mode():
        for chunk in batches(rows, batch):
            loss_N, starts = answer_losses(core, head, chunk)
            total += float(loss_N.double().sum())
            first += float(loss_N[starts].double().sum())
            count += len(loss_N)
    return AnswerLoss(
        loss=total / count, first_token_loss=first / len(rows), tokens=count, rows=len(rows)
    )
