"""Devices of secure sums in this process: Flower's own messages, packed and unpacked each way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from tests.federated.learning_stand_ins import BASE, SHAPES, a_device

from floe.assemble.secure_rounds import secure_change
from floe.federated.secure_sum import SecureTerms
from floe.federated.shields.secagg import FixedPoint
from floe.federated.start import fresh_state, on_shared_a, with_rest
from floe.federated.update import AdapterState, Factors, Update
from floe.flower.messages import reply_with_name
from floe.flower.secagg import stage_of
from floe.flower.secagg_device import secure_answer
from floe.learn import DeviceParts

RANK, A_SEED = 4, 5
TERMS = SecureTerms(rank=RANK, a_seed=A_SEED, least=3, fixed=FixedPoint(clipping_range=2.0))
STAGES = Stage.all()


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class StepTrainer:
    """Moves B by a fixed step within its own rank; `spoil` spoils a value."""

    def __init__(self, seed: int, *, spoil: float | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.step = {n: rng.uniform(-0.4, 0.4, (o, RANK)) for n, (o, _) in SHAPES.items()}
        self.spoil = spoil
        self.fits = 0

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        self.fits += 1
        begin = start or fresh_state(BASE, SHAPES, rank=rank, seed=A_SEED)
        begin = on_shared_a(begin, rank=rank, seed=A_SEED)
        modules = {}
        for name, factors in begin.modules.items():
            b_OR = (factors.b_OR + self.step[name][:, :rank]).astype(np.float32)
            if self.spoil is not None:
                b_OR[0, 0] = self.spoil
            modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
        return Update(
            client="",
            round_number=0,
            state=AdapterState(base_digest=BASE, modules=modules),
            n_examples=10,
            metrics={"loss": 0.123},
        )

    def loss(self, state: AdapterState | None) -> float:
        raise AssertionError("nobody judges")


class Lift:
    """To the federation's rank, as the real device does."""

    name = "lift"

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        state = on_shared_a(update.state, rank=RANK, seed=A_SEED)
        if start is not None:
            state = with_rest(state, start, from_column=update.state.rank)
        return replace(update, state=state)

    def on_server(self, total: Any, updates: Any, *, seed: int) -> Any:
        return total


def device(folder: Path, name: str, seed: int, *, rank: int = RANK, **change: Any) -> DeviceParts:
    trainer = StepTrainer(seed, spoil=change.pop("spoil", None))
    return a_device(folder, name, trainer=trainer, rank=rank, shields=(Lift(),), **change)


@dataclass
class Node:
    node_id: int
    parts: DeviceParts
    name: str = ""
    last_activated_at: str = "1"
    context: Any = None


@dataclass
class SecureNodes:
    """A grid. `leaves` device -> the step from which on it is silent; `forge` changes what arrives
    from a device; `received` is all that the server ever sees."""

    parts: list[DeviceParts]
    terms: SecureTerms = TERMS
    leaves: dict[str, str] = field(default_factory=dict)
    forge: Callable[[str, str, Any], Any] = lambda _name, _stage, message: message
    meddle: Callable[[str, str, Any], Any] = lambda _name, _stage, message: message
    received: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {n: Node(n, p) for n, p in enumerate(self.parts, start=1)}
        for n, node in self.nodes.items():
            node.context = Context(1, n, {}, RecordDict(), {})
        self._replies: dict[str, Any] = {}
        self._count = 0

    def get_nodes(self) -> list[Node]:
        return list(self.nodes.values())

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Any) -> str:
        self._count += 1
        message.metadata.__dict__["_message_id"] = ident = f"m{self._count}"
        node = self.nodes[message.metadata.dst_node_id]
        reply = self._reply(node, carried(message))
        if reply is not None:
            self._replies[ident] = carried(reply)
        return ident

    def _reply(self, node: Node, message: Any) -> Any:
        name, stage = node.parts.name, stage_of(message)
        if not stage:
            return reply_with_name(name, message)
        if name in self.leaves and STAGES.index(stage) >= STAGES.index(self.leaves[name]):
            return None
        message = self.meddle(name, stage, message)

        def change(data: bytes) -> Any:
            return secure_change(data, node.parts, self.terms)

        reply = secure_answer(message, node.context, self.terms, change)
        self.received[name, stage] = carried(reply)
        return self.forge(name, stage, reply)

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self._replies.pop(i) for i in list(ids) if i in self._replies]


def carried(message: Any) -> Any:
    """The message after a way as bytes."""
    objects = get_all_nested_objects(message)
    contents = {name: one.deflate() for name, one in objects.items()}
    back = inflate_object_from_contents(message.object_id, contents)
    back.metadata.__dict__["_message_id"] = message.metadata.message_id
    assert isinstance(back, Message)
    return back


def steps_of(parts: DeviceParts) -> dict[str, Any]:
    """A device's plain change of B, zeros beyond its rank."""
    assert isinstance(parts.trainer, StepTrainer)
    whole = {n: s.copy() for n, s in parts.trainer.step.items()}
    for step in whole.values():
        step[:, parts.rank :] = 0.0
    return whole
