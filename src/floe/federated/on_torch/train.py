"""Local training of a LoRA on a device's own examples, at the rank the device can carry.

A run is decided by its settings, seed, data, start and base: the same ones give the same bits,
also when it was killed half-way and resumed. One thread unless told otherwise.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from floe.core.errors import BadConfig, BadUpdate, Busy
from floe.federated.checkpoints import Checkpoint, Checkpoints
from floe.federated.conditions import Conditions
from floe.federated.examples import ExampleSplit
from floe.federated.on_torch.base_model import TARGETS, BaseModel
from floe.federated.on_torch.lora import Attached, attached, check_start
from floe.federated.on_torch.losses import AnswerLoss, answer_losses, mean_loss
from floe.federated.on_torch.steps import MeanGradient, StepRule, pull_back, schedule
from floe.federated.rows import Row, rows_of
from floe.federated.start import at_rank, fresh_state, on_shared_a
from floe.federated.update import AdapterState, Update

Tensor: TypeAlias = Any
Mode = Literal["both", "freeze-a", "alternate"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a device trains.

    `mode`: "both" factors, "freeze-a" = B alone over an A that all devices share, "alternate" = B
    in even rounds and A in odd ones. `a_seed` draws the shared A and is one for the federation.
    `proximal` holds the adapter near its start, by distance of "products" or of "factors".
    """

    targets: tuple[str, ...] = TARGETS
    mode: Mode = "both"
    steps: int = 20
    batch: int = 4
    accumulate: int = 1
    learning_rate: float = 5e-4
    warmup_steps: int = 2
    clip_norm: float | None = 1.0
    proximal: float = 0.0
    proximal_space: Literal["products", "factors"] = "products"
    max_tokens: int = 256
    a_seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        """Raises BadConfig for a number that is not finite or out of range (bug-log C11)."""
        for name in ("steps", "batch", "accumulate", "max_tokens", "threads"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} must be 1 or more", param=name)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise BadConfig("learning_rate must be finite and above 0", param="learning_rate")
        if not (math.isfinite(self.proximal) and self.proximal >= 0.0):
            raise BadConfig("proximal must be finite and not below 0", param="proximal")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise BadConfig("clip_norm must be above 0, or None", param="clip_norm")


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """After a step: `loss` is of its own batch, None where it is not to be shown.

    `paused` is a reason for waiting, and no step was done then.
    """

    step: int
    steps: int
    loss: float | None = None
    step_s: float = 0.0
    paused: str = ""


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
        progress: Callable[[StepReport], None] = lambda _: None,
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
        sides = {
            name: rows_of(examples, base.encode, max_tokens=settings.max_tokens)[0]
            for name, examples in (("train", split.train), ("validation", split.validation))
        }
        return cls(base=base, settings=settings, **sides, **options)

    def start_state(self, start: AdapterState | None, *, rank: int) -> AdapterState:
        """What training begins with: `start` at this device's rank, or a fresh adapter.

        Raises:
            BadUpdate: it does not fit the base.
        """
        s, shapes = self.settings, self.base.shapes(self.settings.targets)
        if start is None:
            return fresh_state(self.base.digest, shapes, rank=rank, seed=s.a_seed)
        check_start(self.base, start)
        if s.mode == "freeze-a":
            return on_shared_a(start, rank=rank, seed=s.a_seed)
        return at_rank(start, rank=rank, seed=s.a_seed)

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        """Train from `start` (a fresh adapter when None) and return the whole adapter.

        Raises:
            BadUpdate: `start` does not fit the base, or the loss is not finite any more.
            Busy: the device's conditions did not come back; a checkpoint was kept if there is a
                place for one.
        """
        begin = self.start_state(start, rank=rank)
        run = self._run(begin, rank=rank, seed=seed, round_number=round_number)
        with _settled(self.settings.threads), attached(self.base, begin) as lora:
            losses, resumed, step_s = self._steps(lora, run, seed=seed, round_number=round_number)
            state = lora.state(self.base.digest)
        _require_finite(state)
        if self._checkpoints is not None:
            self._checkpoints.clear()
        shown = [x for x in losses if x is not None]
        metrics = {"steps": float(self.settings.steps), "resumed_at_step": float(resumed)}
        metrics["step_s"] = step_s
        if shown:
            metrics |= {"train_loss_first": shown[0], "train_loss_last": shown[-1]}
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

    def _steps(
        self, lora: Attached, run: str, *, seed: int, round_number: int
    ) -> tuple[list[float | None], int, float]:
        """Train the factors in place: losses by step, where it resumed, seconds per step."""
        s = self.settings
        start = {n: (lora.a[n].detach().clone(), lora.b[n].detach().clone()) for n in lora.a}
        weights = _trained(lora, s.mode, round_number)
        optimizer = torch.optim.AdamW(weights, lr=s.learning_rate, weight_decay=0.0)
        done, losses = self._resume(lora, optimizer, weights, run)
        first, began = done, time.perf_counter()
        for batch in _from(self._rule.draw(self.train, steps=s.steps, seed=seed), done):
            self._wait(done, lora, optimizer, weights, run, losses)
            loss = self._step(lora, weights, batch, start, step=done, seed=seed)
            for group in optimizer.param_groups:
                warmup = min(s.warmup_steps, s.steps - 1)
                group["lr"] = s.learning_rate * schedule(done, steps=s.steps, warmup_steps=warmup)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            losses.append(loss)
            step_s = (time.perf_counter() - began) / (done - first)
            self._progress(StepReport(step=done, steps=s.steps, loss=loss, step_s=step_s))
            kept = self._checkpoints
            if kept is not None and done % kept.every_steps == 0 and done < s.steps:
                kept.save(_checkpoint(lora, optimizer, weights, run, done, losses))
        return losses, first, (time.perf_counter() - began) / max(1, done - first)

    def _step(
        self, lora: Attached, weights: Sequence[Tensor], batch: Sequence[Row], start: Any,
        *, step: int, seed: int,
    ) -> float | None:  # fmt: skip
        s = self.settings
        lora.model.train()

        def loss_of(rows: Sequence[Row]) -> tuple[Tensor, list[int]]:
            return answer_losses(self.base.core, self.base.head, rows)

        loss = self._rule.fill(lora, weights, batch, loss_of, step=step, seed=seed)
        if s.proximal > 0.0:
            pull_back(lora, start, strength=s.proximal, space=s.proximal_space)
        if loss is not None and not math.isfinite(loss):
            raise BadUpdate(
                f"the loss is not finite at step {step + 1} of {s.steps}; lower the learning rate "
                f"(now {s.learning_rate:g}) or check the start",
                reason="not-finite",
            )
        return loss

    def _wait(
        self, done: int, lora: Attached, optimizer: Any, weights: Sequence[Tensor], run: str,
        losses: list[float | None],
    ) -> None:  # fmt: skip
        """Nothing while the device may train; keeps a checkpoint where it gives up."""
        if self._conditions is None:
            return
        steps = self.settings.steps

        def tell(reason: str) -> None:
            self._progress(StepReport(step=done, steps=steps, paused=reason))

        try:
            self._conditions.wait(tell)
        except Busy as error:
            kept = "nothing was kept"
            if self._checkpoints is not None:
                self._checkpoints.save(_checkpoint(lora, optimizer, weights, run, done, losses))
                kept = f"it can go on from {self._checkpoints.path}"
            raise Busy(f"{error.message}; {done} of {steps} steps were done, {kept}") from error

    def _resume(
        self, lora: Attached, optimizer: Any, weights: Sequence[Tensor], run: str
    ) -> tuple[int, list[float | None]]:
        found = self._checkpoints.load(run) if self._checkpoints is not None else None
        if found is None:
            return 0, []
        with torch.no_grad():
            for key, weight in _named(lora).items():
                weight.copy_(torch.from_numpy(found.arrays[key]))
        for n, weight in enumerate(weights):
            optimizer.state[weight] = {
                "step": torch.tensor(float(found.step)),
                "exp_avg": torch.from_numpy(found.arrays[f"m.{n}"]),
                "exp_avg_sq": torch.from_numpy(found.arrays[f"v.{n}"]),
            }
        return found.step, list(found.facts["losses"])

    def _run(self, begin: AdapterState, *, rank: int, seed: int, round_number: int) -> str:
        """A digest of everything that decides the run's bits."""
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
    with _settled(threads):
        if state is None:
            with base.lock:
                return mean_loss(base.core, base.head, rows)
        with attached(base, state) as lora:
            lora.model.eval()
            return mean_loss(base.core, base.head, rows)


def _trained(lora: Attached, mode: Mode, round_number: int) -> list[Tensor]:
    """The factors that this round trains; the others are frozen."""
    a = mode == "both" or (mode == "alternate" and round_number % 2 == 1)
    b = mode != "alternate" or round_number % 2 == 0
    for side, wanted in ((lora.a, a), (lora.b, b)):
        for weight in side.values():
            weight.requires_grad_(wanted)
    return [w for w in _named(lora).values() if w.requires_grad]


def _named(lora: Attached) -> dict[str, Tensor]:
    return {f"a.{n}": w for n, w in lora.a.items()} | {f"b.{n}": w for n, w in lora.b.items()}


def _checkpoint(
    lora: Attached, optimizer: Any, weights: Sequence[Tensor], run: str, done: int,
    losses: list[float | None],
) -> Checkpoint:  # fmt: skip
    arrays = {key: weight.detach().numpy() for key, weight in _named(lora).items()}
    for n, weight in enumerate(weights):
        moments = optimizer.state.get(weight)
        for key, field in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            array = moments[field] if moments else torch.zeros_like(weight)
            arrays[f"{key}.{n}"] = array.detach().numpy()
    return Checkpoint(run=run, step=done, arrays=arrays, facts={"losses": losses})


def _from(batches: Iterator[list[Row]], step: int) -> Iterator[list[Row]]:
    """The steps from `step` on; those before are drawn again and passed over."""
    for n, batch in enumerate(batches):
        if n >= step:
            yield batch


def _require_finite(state: AdapterState) -> None:
    for name, factors in state.modules.items():
        if not (np.isfinite(factors.a_RI).all() and np.isfinite(factors.b_OR).all()):
            raise BadUpdate(f"training gave values that are not finite in {name!r}; lower the "
                            "learning rate", reason="not-finite")  # fmt: skip


@contextmanager
def _settled(threads: int) -> Iterator[None]:
    """A fixed number of threads and fixed sums; both are put back."""
    before, fixed = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(fixed)
