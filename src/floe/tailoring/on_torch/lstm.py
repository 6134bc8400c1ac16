"""CLONE's generative model of plans: encoder, evaluator and decoder over sequences of tokens.

Sizes as in the paper: hidden 64, evaluator 200, embedding 32, learning rate 0.001. The encoder
reads a plan in any order; its step outputs are the representation. The evaluator says what score
it leads to, the decoder writes it down again, in the canonical order.

Legend: B sequences, T tokens, U tokens written, V ids, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Tensor: TypeAlias = Any
Allowed = Callable[[Sequence[int]], Sequence[int]]
"""Ids that may follow what was written so far; the end token is among them where it may end."""


@dataclass(frozen=True, kw_only=True)
class LstmSettings:
    """Sizes of the paper; `batch` is at most what there is to learn from."""

    hidden: int = 64
    evaluator: int = 200
    embedding: int = 32
    learning_rate: float = 0.001
    batch: int = 32
    score_share: float = 0.8
    permutations: int = 25
    beam: int = 4


class PlanModel:
    """Learns from scored sequences and proposes better ones. Ids are 0 to `n_ids` - 1.

    One more id serves as start, end and padding.
    """

    def __init__(self, *, n_ids: int, seed: int, settings: LstmSettings | None = None) -> None:
        """Fresh weights from `seed`; nothing outside is drawn from or reseeded."""
        self._settings = settings or LstmSettings()
        self._end = n_ids
        self._rng = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._net = _Net(n_ids + 1, self._settings)
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=self._settings.learning_rate)

    def fit(
        self,
        sequences: Sequence[Sequence[int]],
        scores: Sequence[float],
        *,
        steps: int,
        weights: Sequence[float] | None = None,
    ) -> float:
        """Train on; `scores` are 0 to 1. Returns the joint loss of the last step.

        Each sequence is read in `permutations` random orders and written in its own. `weights` say
        how much each is written for; all are evaluated alike.
        """
        orders = [
            (n, self._rng.permutation(len(s)))
            for n, s in enumerate(sequences)
            for _ in range(self._settings.permutations)
        ]
        share = np.ones(len(sequences)) if weights is None else np.asarray(weights, float)
        share = share / share.mean()
        loss = float("nan")
        self._net.train()
        for _ in range(steps):
            size = min(self._settings.batch, len(orders))
            drawn = self._rng.choice(len(orders), size=size, replace=False)
            rows = [orders[int(i)] for i in drawn]
            read = [[sequences[n][int(k)] for k in order] for n, order in rows]
            written = [[*sequences[n], self._end] for n, _ in rows]
            wanted = torch.tensor([float(scores[n]) for n, _ in rows])
            told = torch.tensor([float(share[n]) for n, _ in rows])
            loss = self._step(read, written, wanted, told)
        return loss

    def _step(
        self, read: list[list[int]], written: list[list[int]], wanted_B: Tensor, told_B: Tensor
    ) -> float:
        ids_BT, there_BT = _padded(read, self._end)
        out_BU, counts_BU = _padded(written, self._end)
        states_BTH = self._net.encode(ids_BT, there_BT)
        score_B = self._net.evaluate(states_BTH, there_BT)
        log_BUV = self._net.write(states_BTH, there_BT, _shifted(out_BU, self._end))
        nll_BU = -log_BUV.gather(2, out_BU[:, :, None])[:, :, 0]
        nll_B = (nll_BU * counts_BU).sum(1) / counts_BU.sum(1)
        share = self._settings.score_share
        mse = functional.mse_loss(score_B, wanted_B)
        loss = share * mse + (1 - share) * (nll_B * told_B).mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._net.parameters(), 5.0)
        self._optimizer.step()
        return float(loss.detach())

    def scores(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """What the evaluator expects of each."""
        self._net.eval()
        with torch.no_grad():
            ids, there = _padded([list(s) for s in sequences], self._end)
            found: list[float] = self._net.evaluate(self._net.encode(ids, there), there).tolist()
        return found

    def better(
        self, start: Sequence[int], *, step: float, allowed: Allowed
    ) -> tuple[list[int], float]:
        """A sequence decoded from `start`'s representation moved up the evaluator's gradient.

        Returns it with the score that the evaluator expects of the moved representation.
        """
        self._net.eval()
        ids, there = _padded([list(start)], self._end)
        with torch.no_grad():
            states = self._net.encode(ids, there)
        states = states.requires_grad_(True)
        (slope,) = torch.autograd.grad(self._net.evaluate(states, there).sum(), states)
        with torch.no_grad():
            scale = slope.norm(dim=2).mean() + 1e-12  # a step of 1 is as long as a state
            moved = functional.normalize(states + step * slope / scale, dim=2)
            expected = float(self._net.evaluate(moved, there))
            return self._beam(moved, there, allowed), expected

    def _beam(self, states_1TH: Tensor, there_1T: Tensor, allowed: Allowed) -> list[int]:
        """The likeliest sequence up to the end token, by its mean log-probability."""
        width = self._settings.beam
        state = self._net.begin(states_1TH, there_1T)
        beams: list[tuple[float, list[int], Any]] = [(0.0, [], state)]
        done: list[tuple[float, list[int]]] = []
        while beams:
            last = torch.tensor([b[1][-1] if b[1] else self._end for b in beams])
            states = tuple(torch.cat([b[2][k] for b in beams]) for k in (0, 1))
            log_BV, states = self._net.next(states_1TH, there_1T, last, states)
            grown: list[tuple[float, list[int], Any]] = []
            for n, (total, written, _) in enumerate(beams):
                own = tuple(s[n : n + 1] for s in states)
                ids = list(allowed(written))
                for i, log in zip(ids, log_BV[n, ids].tolist(), strict=True):
                    if i == self._end:
                        done.append(((total + log) / (len(written) + 1), written))
                    else:
                        grown.append((total + log, [*written, i], own))
            grown.sort(key=lambda b: -b[0] / len(b[1]))
            beams = grown[:width]
        return max(done, key=lambda d: d[0])[1]


class _Net(nn.Module):  # type: ignore[misc]
    def __init__(self, n_ids: int, settings: LstmSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.embedding = nn.Embedding(n_ids, settings.embedding)
        self.encoder = nn.LSTM(settings.embedding, hidden, batch_first=True)
        self.evaluator = nn.Sequential(
            nn.Linear(hidden, settings.evaluator), nn.ReLU(), nn.Linear(settings.evaluator, 1)
        )
        self.decoder = nn.LSTM(settings.embedding, hidden, batch_first=True)
        self.output = nn.Linear(2 * hidden, n_ids)

    def encode(self, ids_BT: Tensor, there_BT: Tensor) -> Tensor:
        """Step outputs of length 1; padding is zero."""
        states, _ = self.encoder(self.embedding(ids_BT))
        return functional.normalize(states, dim=2) * there_BT[:, :, None]

    def evaluate(self, states_BTH: Tensor, there_BT: Tensor) -> Tensor:
        """The expected score, 0 to 1."""
        return torch.sigmoid(self.evaluator(_mean(states_BTH, there_BT)))[:, 0]

    def begin(self, states_BTH: Tensor, there_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's first h and c: both the sequence vector."""
        mean = _mean(states_BTH, there_BT)
        return mean, mean

    def write(self, states_BTH: Tensor, there_BT: Tensor, ids_BU: Tensor) -> Tensor:
        """Log-probabilities of what follows each id."""
        h, c = self.begin(states_BTH, there_BT)
        out, _ = self.decoder(self.embedding(ids_BU), (h[None], c[None]))
        return self._read(out, states_BTH, there_BT)

    def next(
        self, states_1TH: Tensor, there_1T: Tensor, ids_B: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Log-probabilities after one more id, and the decoder's state."""
        h, c = state
        out, (h, c) = self.decoder(self.embedding(ids_B)[:, None], (h[None], c[None]))
        n = ids_B.shape[0]
        log = self._read(out, states_1TH.expand(n, -1, -1), there_1T.expand(n, -1))
        return log[:, 0], (h[0], c[0])

    def _read(self, out_BUH: Tensor, states_BTH: Tensor, there_BT: Tensor) -> Tensor:
        """Dot-product attention on the encoder's outputs, then log-softmax over the ids."""
        match_BUT = torch.einsum("buh,bth->but", out_BUH, states_BTH) * out_BUH.shape[2] ** 0.5
        match_BUT = match_BUT.masked_fill(there_BT[:, None, :] == 0, -1e9)
        read_BUH = torch.einsum("but,bth->buh", match_BUT.softmax(2), states_BTH)
        return self.output(torch.cat([out_BUH, read_BUH], 2)).log_softmax(2)


def _mean(states_BTH: Tensor, there_BT: Tensor) -> Tensor:
    total = (states_BTH * there_BT[:, :, None]).sum(1)
    return functional.normalize(total, dim=1)


def _padded(rows: list[list[int]], fill: int) -> tuple[Tensor, Tensor]:
    longest = max(1, *(len(r) for r in rows))
    ids = torch.full((len(rows), longest), fill)
    there = torch.zeros(len(rows), longest)
    for n, row in enumerate(rows):
        ids[n, : len(row)] = torch.tensor(row, dtype=torch.long)
        there[n, : len(row)] = 1.0
    return ids, there


def _shifted(ids_BU: Tensor, start: int) -> Tensor:
    return torch.cat([torch.full_like(ids_BU[:, :1], start), ids_BU[:, :-1]], dim=1)
