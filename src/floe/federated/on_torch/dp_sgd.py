"""DP-SGD as a rule of local training: example-level privacy on the device, before anything leaves.

Each example's gradient (of its mean answer token) is clipped to a norm over all trained weights,
the sum gets Gaussian noise, and the expected batch size divides it. Per-example gradients are
Opacus'.

Promise: the trained factors are private for each example of the device under add/remove, with the
epsilon that the accountant gives for `DpSgd.mechanism`. The number of examples counts as known.
Losses are not shown: they are not noised.

Legend: B examples of a batch, N answer tokens.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from floe.core.errors import BadConfig, BadUpdate, Missing
from floe.federated.on_torch.lora import Attached
from floe.federated.on_torch.steps import LossOf
from floe.federated.rows import Row
from floe.federated.sampling import Draws, Mechanism, Sampling, positive, same_sampling

Tensor: TypeAlias = Any


class DpSgd:
    """A `StepRule`; draw with it and account with it (bug-log C13)."""

    def __init__(
        self,
        *,
        sampling: Sampling,
        clip_norm: float,
        noise_multiplier: float,
        micro_batch: int = 8,
        secret: bool = True,
    ) -> None:
        """`micro_batch` examples are in memory at once.

        With `secret`, noise comes from the system's entropy too, so two runs differ and nobody who
        knows the run's seed can take the noise off; without it a run repeats bit for bit, for
        tests and benchmarks. The batches come from the run's seed in both cases: keep it on the
        device, the sampling counts only while it is not known.

        Raises:
            BadConfig: a number that is not finite and above 0 (C11).
        """
        self.clip_norm = positive(clip_norm, what="clip norm", param="clip_norm")
        self.noise_multiplier = positive(
            noise_multiplier, what="noise multiplier", param="noise_multiplier"
        )
        if micro_batch < 1:
            raise BadConfig("micro_batch must be 1 or more", param="micro_batch")
        self.sampling, self._micro_batch = sampling, micro_batch
        self._entropy = secrets.randbits(128) if secret else 0
        self._expected_batch = 0
        self.name = (
            f"dp-sgd {sampling.kind} {sampling.rate!r} clip {clip_norm!r} noise "
            f"{noise_multiplier!r} micro {micro_batch}"
        )

    def mechanism(self, steps: int) -> Mechanism:
        """What `steps` steps cost: reserve it in the ledger before training."""
        return Mechanism(
            noise_multiplier=self.noise_multiplier, sampling=self.sampling, steps=steps
        )

    def draw(
        self, rows: Sequence[Row], *, steps: int, seed: int, draws: Draws | None = None
    ) -> Iterator[list[Row]]:
        """The examples of each step, by this rule's own sampling; possibly none.

        Raises:
            BadConfig: `draws` from elsewhere were drawn in another way (C13), or a rate that
                gives no whole example.
        """
        if draws is None:
            draws = self.sampling.draw(n=len(rows), steps=steps, seed=seed)
        same_sampling(self.sampling, draws.sampling)
        if draws.n != len(rows):
            raise BadConfig(f"batches were drawn from {draws.n} examples, there are {len(rows)}")
        self._expected_batch = self.sampling.size(len(rows))
        return ([rows[i] for i in batch] for batch in draws)

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
        """Clipped, summed and noised gradients; noise alone for an empty batch (C16). Never a loss.

        Raises:
            BadConfig: a trained weight gets no per-example gradient (C14), or `draw` was not
                called before. BadUpdate: a gradient is not finite.
        """
        if not self._expected_batch:
            raise BadConfig("draw the batches with this rule's own `draw` first (C13)")
        sums = [torch.zeros_like(w) for w in weights]
        for start in range(0, len(batch), self._micro_batch):
            part = batch[start : start + self._micro_batch]
            for total, one in zip(sums, self._clipped(lora, weights, part, loss_of), strict=True):
                total.add_(one)
        noise = self._noise(step, seed)
        std = self.noise_multiplier * self.clip_norm
        for weight, total in zip(weights, sums, strict=True):
            drawn = sum(torch.randn(weight.shape, generator=noise) for _ in range(4))
            weight.grad = (total + drawn * (std / 2)) / self._expected_batch
        return None

    def _clipped(
        self, lora: Attached, weights: Sequence[Tensor], part: Sequence[Row], loss_of: LossOf
    ) -> list[Tensor]:
        """The sum over examples of gradients within the clip norm."""
        grads = per_example_gradients(lora, weights, part, loss_of)
        squares_B = sum(g.flatten(1).double().square().sum(1) for g in grads)
        if not bool(torch.isfinite(torch.as_tensor(squares_B)).all()):
            raise BadUpdate(
                "an example's gradient is not finite; check the start and the base",
                reason="not_finite",
            )
        norms_B = torch.as_tensor(squares_B).sqrt()
        scale_B = (self.clip_norm / norms_B.clamp(min=1e-12)).clamp(max=1.0).float()
        return [torch.einsum("b,b...->...", scale_B, g) for g in grads]

    def _noise(self, step: int, seed: int) -> Any:
        """A generator for one step's noise alone, so that a run can resume at any step."""
        mixed = np.random.SeedSequence([self._entropy, seed, step, 0x6E6F6973]).generate_state(2)
        return torch.Generator().manual_seed(int(mixed[0]) << 31 ^ int(mixed[1]))


def per_example_gradients(
    lora: Attached, weights: Sequence[Tensor], rows: Sequence[Row], loss_of: LossOf
) -> list[Tensor]:
    """The gradient of each example's mean answer token, (B, *shape) for each of `weights`.

    Raises:
        BadConfig: a weight gets none, such as one of a layer that the model does not use (C14).
        Missing: Opacus is not installed.
    """
    wrapped = _hooked(lora.model)
    try:
        loss_N, starts = loss_of(rows)
        counts = torch.tensor([r.n_answer for r in rows])
        if [int(n) for n in counts.cumsum(0)[:-1]] != list(starts)[1:]:
            raise BadConfig("the loss does not follow the rows' order: gradients would be mixed up")
        with warnings.catch_warnings():
            # The first adapted layer's input needs no gradient, which Opacus' hooks handle.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            (loss_N / torch.repeat_interleave(counts, counts)).sum().backward()
        found = [getattr(w, "grad_sample", None) for w in weights]
        _require_all(lora, weights, found, len(rows))
        return [g.detach() for g in found if g is not None]
    finally:
        wrapped._close()
        for weight in weights:
            weight.grad = None


def _hooked(model: Any) -> Any:
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError as error:
        raise Missing("DP-SGD needs Opacus: pip install 'floe[dp]'") from error
    return GradSampleModule(model, batch_first=True, loss_reduction="sum", strict=False)


def _require_all(
    lora: Attached, weights: Sequence[Tensor], found: Sequence[Any], n_rows: int
) -> None:
    sides = (("A", lora.a), ("B", lora.b))
    names = {id(w): f"{name} {side}" for side, by in sides for name, w in by.items()}
    lacking = [
        names.get(id(w), "a weight that is no factor")
        for w, g in zip(weights, found, strict=True)
        if not isinstance(g, torch.Tensor) or g.shape != (n_rows, *w.shape)
    ]
    if lacking:
        raise BadConfig(
            f"no gradient by example for {len(lacking)} of {len(weights)} trained weights: "
            f"{', '.join(lacking[:8])}. Freeze them, or adapt only layers that every example "
            "runs through",
            param="targets",
        )
