"""Stand-ins for the parts of a round: signatures by a keyed digest, a trainer that
moves towards its own goal, devices that answer in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from floe.core.errors import BadRound
from floe.federated.base import Aggregate
from floe.federated.checks import Expected
from floe.federated.desk import Rules
from floe.federated.rounds import Arrival
from floe.federated.state import Codec, Memory, Outbox, StateFolder
from floe.federated.update import AdapterState, Factors, Update
from floe.federated.wire import decode, encode
from floe.learn import DeviceParts, Grouped, ServerParts, take_part

BASE = "base-digest"
SHAPES = {"layer.q": (6, 4), "layer.v": (3, 5)}
EXPECTED = Expected(base_digest=BASE, shapes=SHAPES, max_rank=8)


def a_state(seed: int = 0, *, rank: int = 2, scale: float = 1.0, **change: Any) -> AdapterState:
    rng = np.random.default_rng(seed)
    modules = {
        name: Factors(
            a_RI=rng.normal(size=(rank, i)).astype(np.float32),
            b_OR=(scale * rng.normal(size=(o, rank))).astype(np.float32),
        )
        for name, (o, i) in SHAPES.items()
    }
    return replace(AdapterState(base_digest=BASE, modules=modules), **change)


def an_update(client: str, seed: int = 0, **change: Any) -> Update:
    update = Update(client=client, round_number=1, state=a_state(seed), n_examples=10)
    return replace(update, **change)


CODEC = Codec(pack=encode, unpack=decode)


def signer(key: str) -> Callable[[bytes], bytes]:
    return lambda message: hashlib.sha256(key.encode() + message).digest()


def verify(key: str, signature: bytes, message: bytes) -> bool:
    return signature == signer(key)(message)


@dataclass
class DenseMean:
    """The mean of the products, dense: the obvious aggregator."""

    name: str = "dense"

    def __post_init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.weights = 0.0
        self.n = self.examples = 0

    def add(self, update: Update, *, weight: float) -> None:
        for name, f in update.state.modules.items():
            self.sums[name] = self.sums.get(name, 0) + weight * (f.b_OR @ f.a_RI)
        self.weights += weight
        self.n, self.examples = self.n + 1, self.examples + update.n_examples

    def close(self, *, rank: int) -> Aggregate:
        if not self.n:
            raise BadRound("nothing was added")
        modules = {}
        for name, total in self.sums.items():
            u, s, v = np.linalg.svd(total / self.weights, full_matrices=False)
            b = (u[:, :rank] * s[:rank]).astype(np.float32)
            modules[name] = Factors(a_RI=v[:rank].astype(np.float32), b_OR=b)
        state = AdapterState(base_digest=BASE, modules=modules)
        return Aggregate(state=state, n_updates=self.n, n_examples=self.examples)


class GoalTrainer:
    """Goes half of the way to its goal; the loss is the distance."""

    def __init__(self, goal: AdapterState, *, n_examples: int = 10) -> None:
        self.goal, self.n_examples = dense(goal), n_examples
        self.fits = 0

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        self.fits += 1
        modules = {}
        for name, goal in self.goal.items():
            at = dense(start)[name] if start is not None else np.zeros_like(goal)
            u, s, v = np.linalg.svd(at + 0.5 * (goal - at), full_matrices=False)
            b = (u[:, :rank] * s[:rank]).astype(np.float32)
            modules[name] = Factors(a_RI=v[:rank].astype(np.float32), b_OR=b)
        state = AdapterState(base_digest=BASE, modules=modules)
        loss = {"loss": self.loss(state)}
        return Update(
            client="", round_number=0, state=state, n_examples=self.n_examples, metrics=loss
        )

    def loss(self, state: AdapterState | None) -> float:
        there = dense(state) if state is not None else {}
        return float(sum(np.abs(g - there.get(n, 0)).sum() for n, g in self.goal.items()))


def dense(state: AdapterState) -> dict[str, Any]:
    return {name: f.b_OR @ f.a_RI for name, f in state.modules.items()}


def one_cluster(updates: Collection[Update], memory: Memory) -> Grouped:
    return Grouped(clusters={"all": tuple(sorted(u.client for u in updates))})


def a_device(folder: Path, name: str, **change: Any) -> DeviceParts:
    parts = DeviceParts(
        name=name,
        base_digest=BASE,
        trainer=GoalTrainer(a_state(7)),
        rank=4,
        codec=CODEC,
        sign=signer(f"key-{name}"),
        outbox=Outbox(folder / f"outbox-{name}"),
        seed=1,
    )
    return replace(parts, **change)


def a_server(folder: Path, names: Sequence[str], **change: Any) -> ServerParts:
    state = StateFolder(folder / "server", codec=CODEC)
    rules = Rules(
        expected=EXPECTED,
        devices={name: f"key-{name}" for name in names},
        verify=verify,
        codec=CODEC,
        adapter=state.adapter,
    )
    parts = ServerParts(
        state=state,
        rules=rules,
        group=one_cluster,
        aggregator=lambda _addition: DenseMean(),
        weigh=lambda update: update.n_examples,
        rank=4,
        seed=3,
    )
    return replace(parts, **change)


class InProcess:
    """Devices that answer in this process; `faults` may bend an answer: name -> bytes -> bytes."""

    def __init__(
        self, parts: Mapping[str, DeviceParts], faults: Mapping[str, Callable[[bytes], Any]] = {}
    ) -> None:
        self.parts, self.faults = parts, dict(faults)
        self.asked: list[str] = []

    def devices(self) -> Sequence[str]:
        return sorted(self.parts)

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        for name, task in tasks.items():
            self.asked.append(name)
            answer = take_part(task, self.parts[name])
            bent = self.faults.get(name, lambda data: data)(answer)
            for one in bent if isinstance(bent, list) else [bent]:
                yield one if isinstance(one, Arrival) else Arrival(client=name, data=one)
