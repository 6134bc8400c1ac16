"""The gate over bytes: sealed verdicts of one bit, kept as counts, asked for by the exporter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floe.assemble.judging import GATES, judge, read_gates
from floe.core.errors import BadRound
from floe.federated.identity import seal, unseal
from floe.federated.rounds import Arrival
from floe.federated.state import Memory
from floe.federated.update import AdapterState
from floe.learn import DeviceParts, ServerParts, run_rounds
from tests.federated.learning_stand_ins import (
    GoalTrainer,
    InProcess,
    a_device,
    a_server,
    a_state,
    signer,
)

NAMES = ("a", "b", "c", "d")


class Worse(GoalTrainer):
    """A device that nothing learned suits."""

    def loss(self, state: AdapterState | None) -> float:
        return 1.0 if state is None else 2.0


@pytest.fixture
def learned(tmp_path: Path) -> tuple[dict[str, DeviceParts], ServerParts, Memory]:
    devices = {n: a_device(tmp_path, n, trainer=GoalTrainer(a_state(7))) for n in NAMES}
    server = a_server(tmp_path, NAMES)
    return devices, server, run_rounds(InProcess(devices), server, rounds=1)


def ask(devices: Mapping[str, DeviceParts], server: ServerParts, memory: Memory) -> Any:
    found = judge(InProcess(devices), server, memory, margin=0.02, min_members=2)
    return found["all"]


def test_members_that_gain_let_it_pass(learned: Any) -> None:
    devices, server, memory = learned
    result = ask(devices, server, memory)
    assert (result.passes, result.facts()) == (True, {"worse": 0, "not_worse": 4})
    assert read_gates(server.state.folder, memory.adapters) == {"all": result}
    other = {"all": "0" * 64}  # a later adapter has not been judged
    assert read_gates(server.state.folder, other) == {}


def test_one_that_loses_stops_it_and_is_not_named(learned: Any) -> None:
    devices, server, memory = learned
    devices = {**devices, "c": replace(devices["c"], trainer=Worse(a_state(7)))}
    result = ask(devices, server, memory)
    assert (result.passes, result.facts()) == (False, {"worse": 1, "not_worse": 3})
    kept = json.loads((server.state.folder / GATES).read_text())
    assert kept["all"]["result"]["why"] == "1 of 4 members are worse off with it"
    assert not any(f'"{name}"' in json.dumps(kept) for name in NAMES)


class Bent(InProcess):
    """A network with a forger: what `bend` makes of each answer."""

    bend: Any = None

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        for arrival in super().exchange(tasks, deadline_s=deadline_s):
            yield from self.bend(arrival)


def _resealed(arrival: Arrival, payload: bytes, key: str) -> Arrival:
    one = unseal(arrival.data)
    sealed = seal(
        payload, client=one.client, round_number=one.round_number, nonce=one.nonce,
        sign=signer(key),
    )  # fmt: skip
    return Arrival(client=arrival.client, data=sealed)


def test_c07_forged_damaged_and_copied_verdicts_count_for_nobody(learned: Any) -> None:
    devices, server, memory = learned

    def bent(a: Arrival) -> list[Arrival]:
        return {
            "a": [_resealed(a, b"worse", "another key")],
            "b": [Arrival(client="b", data=a.data[:-1])],
            "c": [a, _resealed(a, b"worse", "key-c")],  # the first one stands
            "d": [_resealed(a, b"perhaps", "key-d")],
        }[a.client]

    transport = Bent(devices)
    transport.bend = bent
    found = judge(transport, server, memory, margin=0.02, min_members=1)["all"]
    assert (found.passes, found.facts(), found.silent) == (True, {"worse": 0, "not_worse": 1}, 3)
    few = judge(transport, server, memory, margin=0.02, min_members=2)["all"]
    assert (few.passes, few.why, few.facts()) == (False, "fewer than 2 members judged it", {})


def test_nobody_there_is_no_approval(learned: Any) -> None:
    _, server, memory = learned
    assert not ask({}, server, memory).passes


def test_what_is_kept_and_damaged_is_said(learned: Any) -> None:
    devices, server, memory = learned
    ask(devices, server, memory)
    (server.state.folder / GATES).write_text("[1]")
    with pytest.raises(BadRound, match="what members judged, is damaged"):
        read_gates(server.state.folder, memory.adapters)
