"""Local training of a LoRA on a device's own examples, at the rank the device can carry.

A run is decided by its settings, seed, data, start and base: the same ones give the same bits,
also when it was killed half-way and resumed. One thread unless told otherwise.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch

from floe.core.errors import BadUpdate, Busy
from floe.federated.checkpoints import Checkpoints
from floe.federated.conditions import Conditions
from floe.federated.examples import ExampleSplit
from floe.federated.on_torch.base_model import BaseModel
from floe.federated.on_torch.lora import attached, check_start
from floe.federated.on_torch.losses import AnswerLoss, answer_losses, mean_loss
from floe.federated.on_torch.run import Run
from floe.federated.on_torch.steps import MeanGradient, StepRule
from floe.federated.rows import Row, rows_of
from floe.federated.settings import StepReport, TrainSettings
from floe.federated.start import at_rank, fresh_state, on_shared_a
from floe.federated.update import AdapterState, Update

Tensor: TypeAlias = Any
Progress = Callable[[StepReport], None]


class LoraTrainer:
    """The `Trainer` protocol on a base in memory; trainers may share one base."""

    def __init__(
        self,
        *,
        base: BaseModel,
        train: Sequence[Row],
        validation: Sequence[Row],
        client: str = "",
        settings: TrainSettings | None = None,
        rule: StepRule | None = None,
        conditions: Conditions | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        """`rule` forms the gradients (DP-SGD is one), the plain one when None.

        Raises:
            BadUpdate: no rows to train on.
        """
        if not train:
            raise BadUpdate("the device has no example to train on", reason="zero-examples")
        s = settings or TrainSettings()
        self.base, self.settings, self.client = base, s, client
        self.train, self.validation = tuple(train), tuple(validation)
        self._rule = rule or MeanGradient(
            batch=s.batch, accumulate=s.accumulate, clip_norm=s.clip_norm
        )
        self._conditions, self._checkpoints = conditions, checkpoints
        self._progress = progress

    @classmethod
    def of_examples(
        cls, base: BaseModel, split: ExampleSplit, *, settings: TrainSettings, **options: Any
    ) -> LoraTrainer:
        """A trainer on texts; those longer than `settings.max_tokens` are left out.

        Raises:
            BadRequest: nothing is left. BadModel: the base has no usable chat template.
        """
        train, validation = (
            rows_of(side, base.encode, max_tokens=settings.max_tokens)[0]
            for side in (split.train, split.validation)
        )
        return cls(base=base, settings=settings, train=train, validation=validation, **options)

    def start_state(self, start: AdapterState | None, *, rank: int) -> AdapterState:
        """What training begins with: `start` at this device's rank, or a fresh adapter.

        Raises:
            BadUpdate: it does not fit the base.
        """
        s = self.settings
        if start is None:
            shapes = self.base.shapes(s.targets)
            return fresh_state(self.base.digest, shapes, rank=rank, seed=s.a_seed)
        check_start(self.base, start)
        if s.mode == "freeze-a":
            return on_shared_a(start, rank=rank, seed=s.a_seed)
        return at_rank(start, rank=rank, seed=s.a_seed)

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        """Train from `start` (a fresh adapter when None) and return the whole adapter.

        The last checkpoint stays, and makes the same call return at once: clear it when the
        result is safe.

        Raises:
            BadUpdate: `start` does not fit the base, or the loss is not finite any more.
            Busy: the device's conditions did not come back; a checkpoint was kept if there is a
                place for one.
        """
        begin = self.start_state(start, rank=rank)
        digest = self._digest(begin, rank=rank, seed=seed, round_number=round_number)
        with settled(self.settings.threads), attached(self.base, begin) as lora:
            run = Run(lora, self.settings, digest=digest, seed=seed, round_number=round_number)
            metrics = self._train(run, seed=seed)
            state = lora.state(self.base.digest)
        _require_finite(state)
        return Update(
            client=self.client,
            round_number=round_number,
            state=state,
            n_examples=len(self.train),
            metrics=metrics,
        )

    def loss(self, state: AdapterState | None) -> float:
        """Mean loss per answer token on the device's own validation examples, in nats.

        Raises:
            BadUpdate: `state` does not fit the base, or there is nothing to judge by.
        """
        if not self.validation:
            raise BadUpdate("the device has no example to judge by", reason="zero-examples")
        return self.answer_loss(state, self.validation).loss

    def answer_loss(self, state: AdapterState | None, rows: Sequence[Row]) -> AnswerLoss:
        """The loss of `rows` under `state`, the plain base when None.

        Raises:
            BadUpdate: `state` does not fit the base.
        """
        return answer_loss(self.base, state, rows, threads=self.settings.threads)

    def _train(self, run: Run, *, seed: int) -> dict[str, float]:
        """Do the steps that are left; metrics of the run."""
        kept, steps = self._checkpoints, self.settings.steps
        if kept is not None and (found := kept.load(run.digest)) is not None:
            run.resume(found)
        first, began, step_s = run.done, time.perf_counter(), 0.0
        drawn = self._rule.draw(self.train, steps=steps, seed=seed)
        for batch in islice(drawn, first, None):
            self._wait(run)
            loss = run.step(batch, self._rule, self._loss_of)
            step_s = (time.perf_counter() - began) / (run.done - first)
            self._progress(StepReport(step=run.done, steps=steps, loss=loss, step_s=step_s))
            if kept is not None and (run.done % kept.every_steps == 0 or run.done == steps):
                kept.save(run.checkpoint())
        metrics = {"steps": float(run.done), "resumed_at_step": float(first), "step_s": step_s}
        shown = [x for x in run.losses if x is not None]
        if shown:
            metrics |= {"train_loss_first": shown[0], "train_loss_last": shown[-1]}
        return metrics

    def _loss_of(self, rows: Sequence[Row]) -> tuple[Tensor, list[int]]:
        return answer_losses(self.base.core, self.base.head, rows)

    def _wait(self, run: Run) -> None:
        """Nothing while the device may train; keeps a checkpoint where it gives up."""
        if self._conditions is None:
            return
        steps = self.settings.steps

        def tell(reason: str) -> None:
            self._progress(StepReport(step=run.done, steps=steps, paused=reason))

        try:
            self._conditions.wait(tell)
        except Busy as error:
            kept = "nothing was kept"
            if self._checkpoints is not None:
                self._checkpoints.save(run.checkpoint())
                kept = f"it can go on from {self._checkpoints.path}"
            raise Busy(f"{error.message}; {run.done} of {steps} steps were done, {kept}") from error

    def _digest(self, begin: AdapterState, *, rank: int, seed: int, round_number: int) -> str:
        """Of everything that decides the run's bits."""
        sha = hashlib.sha256()
        decided = asdict(self.settings) | {
            "rank": rank, "seed": seed, "round": round_number, "base": self.base.digest,
            "rule": self._rule.name,
        }  # fmt: skip
        sha.update(json.dumps(decided, sort_keys=True).encode())
        for row in self.train:
            sha.update(json.dumps([row.ids, row.n_answer]).encode())
        for name, factors in sorted(begin.modules.items()):
            sha.update(name.encode())
            for array in (factors.a_RI, factors.b_OR):
                sha.update(np.ascontiguousarray(array, np.float32).tobytes())
        return sha.hexdigest()


def answer_loss(
    base: BaseModel, state: AdapterState | None, rows: Sequence[Row], *, threads: int = 1
) -> AnswerLoss:
    """The loss of `rows` under `state`, the plain base when None; answer positions alone are run.

    Raises:
        BadUpdate: `state` does not fit the base.
    """
    with settled(threads):
        if state is None:
            with base.lock:
                return mean_loss(base.core, base.head, rows)
        with attached(base, state) as lora:
            lora.model.eval()
            return mean_loss(base.core, base.head, rows)


@contextmanager
def settled(threads: int) -> Iterator[None]:
    """A fixed number of threads and fixed sums; both are put back."""
    before, fixed = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(fixed)


def _require_finite(state: AdapterState) -> None:
    for name, factors in state.modules.items():
        if not (np.isfinite(factors.a_RI).all() and np.isfinite(factors.b_OR).all()):
            raise BadUpdate(
                f"training gave values that are not finite in {name!r}; lower the learning rate",
                reason="not-finite",
            )
