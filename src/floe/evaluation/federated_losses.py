"""What clustering by task gains: one adapter for each task against one for all, and none shared.

Devices with known tasks train round by round, all with the same number of steps; what differs is
whose updates are added up. Losses are on held-out examples of each device's own task, after the
last round. Settings were chosen on other tasks (`federated_tasks.OTHERS`).

Imports torch: open it inside the function that runs the benchmark.
"""

from __future__ import annotations

import hashlib
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from floe.assemble.learning import open_base
from floe.core.config import home
from floe.core.files import atomic_write
from floe.core.sections import ModelConfig
from floe.evaluation.federated_tasks import MEASURED, Client, clients, tasks
from floe.federated.aggregate.product_mean import ProductMean
from floe.federated.clusters import Clustering, group
from floe.federated.comparable import comparable, direction
from floe.federated.examples import Example
from floe.federated.on_torch.base_model import BaseModel
from floe.federated.on_torch.train import LoraTrainer, answer_loss
from floe.federated.products import state_difference
from floe.federated.rows import Row
from floe.federated.settings import TrainSettings
from floe.federated.splits import split_clusters
from floe.federated.update import AdapterState, Factors, Update

Say = Callable[[str], None]
Groups = Mapping[str, str]
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A form of the experiment; `layers` None = the whole model."""

    names: tuple[str, ...] = MEASURED
    per_task: int = 2
    examples: tuple[int, int] = (24, 48)
    mixed_share: float = 0.1
    ranks: tuple[int, ...] = (4, 8, 16, 32)
    published_rank: int = 16
    rounds: int = 3
    steps: int = 10
    batch: int = 8
    learning_rate: float = 2e-3
    held_out: int = 32
    layers: int | None = None

    def settings(self) -> TrainSettings:
        """The same for every device and every way of adding up."""
        return TrainSettings(
            steps=self.steps, batch=self.batch, learning_rate=self.learning_rate, max_tokens=128
        )


FULL = Plan()
QUICK = Plan(
    names=MEASURED[:4], rounds=2, steps=6, batch=4, examples=(16, 24), held_out=16, layers=3
)


def loss_figures(full: bool, say: Say) -> dict[str, Any]:
    """The figures of issue 6 on clusters and losses, flat. Resumes what an earlier call left.

    Raises:
        NotFound, PullFailed, BadModel: the base cannot be had.
    """
    plan = FULL if full else QUICK
    base = open_base(ModelConfig().name, home=home(), n_layers=plan.layers)
    folder = home() / "bench" / "federated-losses"
    figures = Experiment(base=base, plan=plan, folder=folder if full else None, say=say).figures()
    shutil.rmtree(folder, ignore_errors=True)
    return figures


class Experiment:
    """One base, one plan. Trainings and losses that several ways share are done once."""

    def __init__(
        self, *, base: BaseModel, plan: Plan, say: Say, folder: Path | None = None
    ) -> None:
        """`folder` keeps what was trained, for a run that is stopped."""
        self.base, self.plan, self._say = base, plan, say
        self.clients = clients(
            plan.names, per_task=plan.per_task, ranks=plan.ranks, examples=plan.examples,
            mixed_share=plan.mixed_share, seed=SEED,
        )  # fmt: skip
        self._trainers = {c.name: self._trainer(c) for c in self.clients}
        self._held_out = {
            n: tuple(_row(base, e) for e in tasks()[n].held_out[: plan.held_out])
            for n in plan.names
        }
        self._folder = folder
        self._updates: dict[str, Update] = {}
        self._losses: dict[str, float] = {}
        self._steps_done = 0

    def figures(self) -> dict[str, Any]:
        """`loss_*` are means over devices, each on held-out examples of its own task, in nats."""
        began, cpu = time.perf_counter(), time.process_time()
        task_of = {c.name: c.task for c in self.clients}
        found: dict[str, list[float]] = {"base": [self._loss(None, c.task) for c in self.clients]}
        clustering = self._clustered(found)
        self._fixed(found, "oracle_groups", task_of)
        self._fixed(found, "fedavg", dict.fromkeys(task_of, "all"))
        self._fixed(found, "local", {name: name for name in task_of}, cut=False)
        means = {name: statistics.mean(values) for name, values in found.items()}
        names = [c.name for c in self.clients]
        labels = [clustering.cluster_of(n) for n in names]
        gap = means["fedavg"] - means["oracle_groups"]
        closed = (means["fedavg"] - means["clustered"]) / gap if gap > 0.0 else None
        return {
            "cluster_ari": round(adjusted_rand([task_of[n] for n in names], labels), 4),
            "clusters": len(set(labels)),
            "silhouette": round(clustering.silhouette, 4),
            **{f"loss_{name}": round(value, 4) for name, value in means.items()},
            "gap_closed": None if closed is None else round(closed, 4),
            "clients": len(names),
            "tasks": len(self.plan.names),
            "rounds": self.plan.rounds,
            "steps": self.plan.steps,
            "batch": self.plan.batch,
            "learning_rate": self.plan.learning_rate,
            "ranks": ",".join(map(str, self.plan.ranks)),
            "published_rank": self.plan.published_rank,
            "mixed_share": self.plan.mixed_share,
            "layers": self.base.n_layers,
            "held_out_examples": sum(len(rows) for rows in self._held_out.values()),
            "trained_steps": self._steps_done,
            "losses_seconds": round(time.perf_counter() - began, 1),
            "losses_cpu_s": round(time.process_time() - cpu, 1),
        }

    def _clustered(self, found: dict[str, list[float]]) -> Clustering:
        """Groups found anew in each round from the updates alone."""
        starts: dict[str, AdapterState | None] = {c.name: None for c in self.clients}
        clustering: Clustering | None = None
        for number in range(self.plan.rounds):
            updates = {n: self._update(n, s, number) for n, s in starts.items()}
            states, mean = comparable(
                {n: u.state for n, u in updates.items()}, seed=self.plan.settings().a_seed
            )
            grouped = group(states, start=mean, previous=clustering, at_most=len(updates) - 1)
            changes = {n: self._change(u, starts[n]) for n, u in updates.items() if starts[n]}
            clustering = split_clusters(grouped, changes, previous=clustering)
            starts = _means(updates, clustering.cluster_of, self.plan.published_rank)
            self._say(f"clustered, round {number + 1}: {len(clustering.clusters)} clusters")
        assert clustering is not None
        found["clustered"] = [self._loss(starts[c.name], c.task) for c in self.clients]
        return clustering

    def _change(self, update: Update, start: AdapterState | None) -> AdapterState:
        """What a device changed, in the directions that devices of all ranks have."""
        assert start is not None
        began = self._trainers[update.client].start_state(start, rank=update.state.rank)
        seed = self.plan.settings().a_seed
        change = state_difference(update.state, began)
        return direction(change, rank=min(self.plan.ranks), seed=seed)

    def _fixed(
        self, found: dict[str, list[float]], way: str, groups: Groups, *, cut: bool = True
    ) -> None:
        """Groups that are known from the start."""
        starts: dict[str, AdapterState | None] = {c.name: None for c in self.clients}
        for number in range(self.plan.rounds):
            updates = {n: self._update(n, s, number) for n, s in starts.items()}
            if cut:
                starts = _means(updates, groups.__getitem__, self.plan.published_rank)
            else:
                starts = {n: u.state for n, u in updates.items()}
            self._say(f"{way}, round {number + 1} of {self.plan.rounds}")
        found[way] = [self._loss(starts[c.name], c.task) for c in self.clients]

    def _update(self, client: str, start: AdapterState | None, number: int) -> Update:
        """One device's training; what was done for another way is not done again."""
        key = _key(client, number, _digest(start), self.base.digest, asdict(self.plan))
        if key not in self._updates:
            trainer = self._trainers[client]
            rank = next(c.rank for c in self.clients if c.name == client)
            kept = None if self._folder is None else _load(self._folder / key, self.base.digest)
            if kept is None:
                update = trainer.fit(start, rank=rank, seed=SEED + number, round_number=number)
                self._steps_done += self.plan.steps
                kept = update.state
                if self._folder is not None:
                    _save(self._folder / key, kept)
            self._updates[key] = Update(
                client=client, round_number=number, state=kept, n_examples=len(trainer.train)
            )
        return self._updates[key]

    def _loss(self, state: AdapterState | None, task: str) -> float:
        key = _key(task, _digest(state))
        if key not in self._losses:
            found = answer_loss(self.base, state, self._held_out[task])
            self._losses[key] = found.loss
        return self._losses[key]

    def _trainer(self, client: Client) -> LoraTrainer:
        return LoraTrainer(
            base=self.base,
            train=[_row(self.base, e) for e in client.train],
            validation=(),
            client=client.name,
            settings=self.plan.settings(),
        )


def adjusted_rand(truth: Sequence[str], found: Sequence[str]) -> float:
    """1 for the same groups, about 0 for groups by chance (Hubert and Arabie)."""
    pairs = sum(comb(n, 2) for n in Counter(zip(truth, found, strict=True)).values())
    in_truth = sum(comb(n, 2) for n in Counter(truth).values())
    in_found = sum(comb(n, 2) for n in Counter(found).values())
    by_chance = in_truth * in_found / comb(len(truth), 2)
    most = (in_truth + in_found) / 2
    return 1.0 if most == by_chance else (pairs - by_chance) / (most - by_chance)


def _row(base: BaseModel, example: Example) -> Row:
    """The chat's turns without the default system message, which would be most of each row."""
    end = base.tokenizer.eos_token
    head = f"<|im_start|>user\n{example.turns[-1].content}{end}\n<|im_start|>assistant\n"
    return base.row(head, f"{example.answer}{end}")


def _means(
    updates: Mapping[str, Update], group_of: Callable[[str], str], rank: int
) -> dict[str, AdapterState | None]:
    """For each client its group's mean of products, weighted by examples."""
    sums: dict[str, ProductMean] = {}
    for name, update in sorted(updates.items()):
        sums.setdefault(group_of(name), ProductMean()).add(update, weight=update.n_examples)
    states = {name: total.close(rank=rank).state for name, total in sums.items()}
    return {name: states[group_of(name)] for name in updates}


def _digest(state: AdapterState | None) -> str:
    sha = hashlib.sha256()
    for name, factors in sorted((state.modules if state else {}).items()):
        sha.update(name.encode())
        for array in (factors.a_RI, factors.b_OR):
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _key(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _save(path: Path, state: AdapterState) -> None:
    arrays: dict[str, Any] = {}
    for name, f in state.modules.items():
        arrays |= {f"{name}:a": f.a_RI, f"{name}:b": f.b_OR}
    with atomic_write(path) as file:
        file.write(safetensors.numpy.save(arrays))


def _load(path: Path, base_digest: str) -> AdapterState | None:
    if not path.is_file():
        return None
    arrays = safetensors.numpy.load(path.read_bytes())
    names = sorted({key.rpartition(":")[0] for key in arrays})
    return AdapterState(
        base_digest=base_digest,
        modules={n: Factors(a_RI=arrays[f"{n}:a"], b_OR=arrays[f"{n}:b"]) for n in names},
    )
