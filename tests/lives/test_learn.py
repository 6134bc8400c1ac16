"""Rounds from end to end over bytes: both halves, refusals, void rounds, resumption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floe.core.errors import BadRound, PrivacySpent
from floe.federated.base import Aggregate
from floe.federated.desk import Spent
from floe.federated.identity import seal, unseal
from floe.federated.report import totals
from floe.federated.rounds import Arrival, Task, failure_in, pack_task
from floe.federated.state import Memory
from floe.federated.update import AdapterState, Update
from floe.learn import DeviceParts, Grouped, local_update, run_rounds, take_part
from tests.federated.learning_stand_ins import (
    BASE,
    CODEC,
    GoalTrainer,
    InProcess,
    a_device,
    a_server,
    a_state,
    dense,
    signer,
)

NAMES = ("a", "b", "c", "d")


def devices(folder: Path, names: tuple[str, ...] = NAMES, **change: Any) -> dict[str, DeviceParts]:
    return {
        name: a_device(folder, name, trainer=GoalTrainer(a_state(7)), **change) for name in names
    }


def final_loss(folder: Path, adapters: Mapping[str, str]) -> float:
    state = a_server(folder, NAMES).state.adapter(next(iter(adapters.values())))
    return GoalTrainer(a_state(7)).loss(state)


def resealed(data: bytes, **change: Any) -> bytes:
    """A device's answer with its update changed, sealed as if by itself."""
    one = unseal(data)
    update = replace(CODEC.unpack(one.payload), **change)
    return seal(
        CODEC.pack(update),
        client=one.client,
        round_number=one.round_number,
        nonce=one.nonce,
        sign=signer(f"key-{one.client}"),
    )


def with_value(data: bytes, value: float) -> bytes:
    state = CODEC.unpack(unseal(data).payload).state
    f = state.modules["layer.q"]
    b = f.b_OR.copy()
    b[0, 0] = value
    modules = {**state.modules, "layer.q": replace(f, b_OR=b)}
    return resealed(data, state=replace(state, modules=modules))


def test_rounds_bring_everyone_nearer(tmp_path: Path) -> None:
    server = a_server(tmp_path, NAMES)
    memory = run_rounds(InProcess(devices(tmp_path)), server, rounds=4)
    assert memory.next_round == 5
    assert memory.opened is None
    assert memory.clusters == dict.fromkeys(NAMES, "all")
    base = GoalTrainer(a_state(7)).loss(None)
    assert final_loss(tmp_path, memory.adapters) == pytest.approx(base / 2**4, rel=1e-3)


def test_the_report_says_what_was(tmp_path: Path) -> None:
    server = a_server(tmp_path, (*NAMES, "e"))
    transport = InProcess(devices(tmp_path), {"b": lambda data: with_value(data, np.nan)})
    run_rounds(transport, server, rounds=2)
    first, second = server.state.reports()
    assert first["selected"] == list(NAMES)
    assert first["accepted"] == ["a", "c", "d"]
    assert first["refused"] == [{"client": "b", "reason": "nan"}]
    assert (first["n_selected"], first["n_returned"], first["n_accepted"]) == (4, 4, 3)
    assert first["refused_by_reason"] == {"nan": 1}
    assert first["clusters"][0]["clients"] == ["a", "c", "d"]
    assert first["clusters"][0]["n_examples"] == 30
    assert first["bytes_up"] > 0
    assert second["bytes_down"] > first["bytes_down"]  # now there is an adapter to send
    assert first["metrics"]["loss"] > second["metrics"]["loss"]
    assert set(first["timings_s"]) == {"receive", "add_up"}
    found = totals([first, second])
    assert found["rounds"] == 2
    assert found["refused"] == 2
    assert found["bytes_up"] == first["bytes_up"] + second["bytes_up"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda data: with_value(data, np.nan), "nan"),
        (lambda data: with_value(data, np.inf), "infinite"),
        (lambda data: with_value(data, 1e6), "norm_too_large"),
        (lambda data: resealed(data, n_examples=0), "no_examples"),
        (lambda data: resealed(data, state=a_state(rank=12)), "malformed"),
        (lambda data: resealed(data, state=AdapterState(base_digest=BASE, modules={})), "empty"),
        (lambda data: data[:-3], "corrupt"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "corrupt"),
        (lambda data: b"", "corrupt"),
        (lambda data: data.replace(b'"client": "b"', b'"client": "x"'), "unregistered"),
        (lambda data: data.replace(b'"client": "b"', b'"client": "a"'), "unsigned"),
    ],
)
def test_c05_c07_one_bad_update_disturbs_nobody(tmp_path: Path, fault: Any, reason: str) -> None:
    server = a_server(tmp_path, NAMES)
    memory = run_rounds(InProcess(devices(tmp_path), {"b": fault}), server, rounds=2)
    refused = [{"client": "b", "reason": reason}]
    assert [r["refused"] for r in server.state.reports()] == [refused] * 2
    base = GoalTrainer(a_state(7)).loss(None)
    assert final_loss(tmp_path, memory.adapters) == pytest.approx(base / 4, rel=1e-3)


def test_c07_a_second_copy_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    server = a_server(tmp_path, NAMES)
    transport = InProcess(devices(tmp_path), {"b": lambda data: [data, data]})
    run_rounds(transport, server, rounds=1)
    (report,) = server.state.reports()
    assert report["refused"] == [{"client": "b", "reason": "duplicate"}]
    assert report["accepted"] == list(NAMES)


def test_c26_a_late_update_is_refused_and_its_device_takes_part_again(tmp_path: Path) -> None:
    server = a_server(tmp_path, NAMES)
    late: list[bytes] = []

    def slow(data: bytes) -> object:
        if not late:
            late.append(data)
            return Arrival(client="b", error="deadline")
        return [late[0], data]

    run_rounds(InProcess(devices(tmp_path), {"b": slow}), server, rounds=2)
    first, second = server.state.reports()
    assert first["failed"] == [{"client": "b", "reason": "deadline"}]
    assert second["refused"] == [{"client": "b", "reason": "late"}]
    assert second["accepted"] == list(NAMES)


def test_a_replayed_update_is_refused(tmp_path: Path) -> None:
    server = a_server(tmp_path, NAMES)
    sent: list[bytes] = []

    def again(data: bytes) -> list[bytes]:
        sent.append(data)
        return [sent[0], data] if len(sent) > 1 else [data]

    run_rounds(InProcess(devices(tmp_path), {"b": again}), server, rounds=2)
    assert server.state.reports()[1]["refused"] == [{"client": "b", "reason": "replayed"}]


def test_c01_c04_a_round_with_too_few_changes_nothing(tmp_path: Path) -> None:
    server = a_server(tmp_path, NAMES, min_clients=3)
    good = InProcess(devices(tmp_path))
    before = run_rounds(good, server, rounds=1)
    bad = InProcess(
        devices(tmp_path), dict.fromkeys("abc", lambda data: resealed(data, n_examples=0))
    )
    with pytest.raises(BadRound, match=r"round 2 has 1 good updates of at least 3.*a: no_examples"):
        run_rounds(bad, server, rounds=2)
    after = server.state.read(BASE)
    assert after.adapters == before.adapters
    assert after.next_round == 2
    void = server.state.reports()[1:]
    assert [r["attempt"] for r in void] == [1, 2, 3]
    assert all("the model stays as it was" in r["void"] for r in void)
    assert run_rounds(good, server, rounds=2).next_round == 3
    assert server.state.reports()[-1]["attempt"] == 4


class Killed(Exception):
    """Stands for kill -9: nothing behind it is run by the server."""


class Killing(InProcess):
    """Dies when it has brought two answers."""

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Any:
        for n, arrival in enumerate(super().exchange(tasks, deadline_s=deadline_s)):
            if n == 2:
                raise Killed
            yield arrival


def test_a_server_killed_in_a_round_goes_on_in_the_same_round(tmp_path: Path) -> None:
    parts = devices(tmp_path)
    server = a_server(tmp_path, NAMES)
    run_rounds(InProcess(parts), server, rounds=1)
    with pytest.raises(Killed):
        run_rounds(Killing(parts), server, rounds=2)
    opened = server.state.read(BASE).opened
    assert opened is not None
    transport = InProcess(parts)
    memory = run_rounds(transport, a_server(tmp_path, NAMES), rounds=2)
    assert memory.past[-1].nonce == opened.nonce
    report = server.state.reports()[1]
    assert report["resumed"] == ["a", "b"]
    assert report["accepted"] == list(NAMES)
    assert transport.asked == ["c", "d"]
    # c had trained before the server died: it sent again what it had, and did not train twice.
    assert [parts[n].trainer.fits for n in NAMES] == [2, 2, 2, 2]  # type: ignore[attr-defined]


def test_a_robust_aggregators_refusal_leaves_a_cluster_as_it_was(tmp_path: Path) -> None:
    class Hostile:
        name = "hostile"

        def add(self, update: Update, *, weight: float) -> None: ...

        def close(self, *, rank: int) -> Aggregate:
            raise BadRound("3 of 4 look hostile")

    server = a_server(tmp_path, NAMES, aggregator=lambda _addition: Hostile())
    with pytest.raises(BadRound, match="all: 3 of 4 look hostile"):
        run_rounds(InProcess(devices(tmp_path)), server, rounds=1)
    assert server.state.read(BASE).adapters == {}


def test_clusters_have_adapters_of_their_own(tmp_path: Path) -> None:
    def by_letter(updates: Any, memory: Memory) -> Grouped:
        names = sorted(u.client for u in updates)
        return Grouped(
            clusters={
                "x": tuple(n for n in names if n < "c"),
                "y": tuple(n for n in names if n >= "c"),
            },
            memory={"seen": memory.groups.get("seen", 0) + 1},
        )

    server = a_server(tmp_path, NAMES, group=by_letter)
    goals = {"a": 1, "b": 1, "c": 2, "d": 2}
    parts = {n: a_device(tmp_path, n, trainer=GoalTrainer(a_state(g))) for n, g in goals.items()}
    memory = run_rounds(InProcess(parts), server, rounds=3)
    assert memory.groups == {"seen": 3}
    for cluster, goal in (("x", 1), ("y", 2)):
        trainer = GoalTrainer(a_state(goal))
        loss = trainer.loss(server.state.adapter(memory.adapters[cluster]))
        assert loss == pytest.approx(trainer.loss(None) / 8, rel=1e-3)


def test_a_cluster_of_too_few_is_not_shown(tmp_path: Path) -> None:
    def alone(updates: Any, memory: Memory) -> Grouped:
        names = sorted(u.client for u in updates)
        return Grouped(clusters={"x": tuple(names[:-1]), "y": (names[-1],)})

    server = a_server(tmp_path, NAMES, group=alone, min_members=2)
    memory = run_rounds(InProcess(devices(tmp_path)), server, rounds=1)
    assert set(memory.adapters) == {"x"}
    (report,) = server.state.reports()
    assert report["clusters"][1]["why"] == "1 of at least 2 devices"
    assert not report["clusters"][1]["changed"]


def test_a_new_device_begins_with_the_only_adapter(tmp_path: Path) -> None:
    run_rounds(InProcess(devices(tmp_path)), a_server(tmp_path, NAMES), rounds=2)
    server = a_server(tmp_path, (*NAMES, "e"))
    parts = devices(tmp_path, (*NAMES, "e"))
    memory = run_rounds(InProcess(parts), server, rounds=3)
    assert memory.clusters["e"] == "all"
    base = GoalTrainer(a_state(7)).loss(None)
    assert final_loss(tmp_path, memory.adapters) == pytest.approx(base / 8, rel=1e-3)


def test_a_round_that_cannot_be_afforded_trains_nobody(tmp_path: Path) -> None:
    def afford(number: int) -> None:
        if number > 1:
            raise PrivacySpent("round 2 would pass epsilon 3")

    server = a_server(
        tmp_path, NAMES, afford=afford, spend=lambda opened, n: Spent(epsilon=1.5, terms="all")
    )
    parts = devices(tmp_path)
    with pytest.raises(PrivacySpent, match="round 2 would pass epsilon 3"):
        run_rounds(InProcess(parts), server, rounds=2)
    assert all(p.trainer.fits == 1 for p in parts.values())  # type: ignore[attr-defined]
    (report,) = server.state.reports()
    assert (report["epsilon"], report["epsilon_of"]) == (1.5, "all")


def test_a_device_whose_budget_is_spent_says_so(tmp_path: Path) -> None:
    def spend(task: Task) -> Mapping[str, float]:
        if task.round_number > 1:
            raise PrivacySpent("nothing is left")
        return {"epsilon": 2.5}

    parts = devices(tmp_path)
    parts["b"] = replace(parts["b"], spend=spend)
    server = a_server(tmp_path, NAMES)
    run_rounds(InProcess(parts), server, rounds=2)
    first, second = server.state.reports()
    assert first["epsilon"] == 2.5
    assert first["epsilon_of"] == "the highest of the devices' own ledgers"
    assert second["failed"] == [{"client": "b", "reason": "privacy_budget_error"}]
    assert parts["b"].trainer.fits == 1  # type: ignore[attr-defined]


class Mark:
    """A shield that notes what it saw; on the device it replaces the weights."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        self.seen.append(f"device {self.name}")
        return replace(update, state=a_state(99), metrics={"clipped": 1.0})

    def on_server(self, total: Aggregate, updates: Any, *, seed: int) -> Aggregate:
        self.seen.append(f"server {self.name} {','.join(updates)}")
        return total


def test_shields_work_in_order_and_undo_in_reverse(tmp_path: Path) -> None:
    seen: list[str] = []
    shields = (Mark("clip", seen), Mark("noise", seen))
    server = a_server(tmp_path, ("a", "b"), shields=shields)
    run_rounds(InProcess(devices(tmp_path, ("a", "b"), shields=shields)), server, rounds=1)
    assert seen == [*["device clip", "device noise"] * 2, "server noise a,b", "server clip a,b"]
    assert server.state.reports()[0]["clipped_share"] == 1.0


def test_unshielded_weights_do_not_leave(tmp_path: Path) -> None:
    parts = a_device(tmp_path, "a", shields=(Mark("clip", []),))
    task = Task(kind="train", round_number=1, nonce="n", base_digest=BASE)
    update = local_update(None, parts, task=task, seed=1)
    raw = parts.trainer.fit(None, rank=4, seed=1)
    for name, product in dense(raw.state).items():
        assert not np.allclose(dense(update.state)[name], product)


def test_a_device_says_what_cutting_the_adapter_to_its_rank_cost(tmp_path: Path) -> None:
    task = Task(kind="train", round_number=1, nonce="n", base_digest=BASE)
    narrow, wide = (a_device(tmp_path, "a", rank=rank) for rank in (1, 2))
    start = a_state(rank=2)
    assert "start_cut_error" not in local_update(start, wide, task=task, seed=1).metrics
    told = local_update(start, narrow, task=task, seed=1).metrics["start_cut_error"]
    whole = sum(np.sum(m**2) for m in dense(start).values())
    lost = sum(
        np.linalg.svd(m, compute_uv=False)[1:].astype(float)
        @ np.linalg.svd(m, compute_uv=False)[1:]
        for m in dense(start).values()
    )
    assert told == pytest.approx(np.sqrt(lost / whole), rel=1e-4)


def test_a_device_with_another_base_does_not_train(tmp_path: Path) -> None:
    parts = a_device(tmp_path, "a")
    task = Task(kind="train", round_number=1, nonce="n", base_digest="other")
    assert failure_in(take_part(pack_task(task), parts)) == "update_error"
    assert failure_in(take_part(b"nonsense", parts)) == "invalid_request_error"
    assert parts.trainer.fits == 0  # type: ignore[attr-defined]


def test_a_round_that_is_held_again_costs_a_device_nothing(tmp_path: Path) -> None:
    spent: list[str] = []

    def spend(task: Task) -> dict[str, float]:
        spent.append(task.nonce)
        return {}

    parts = replace(a_device(tmp_path, "a"), spend=spend, seed=None)
    task = Task(kind="train", round_number=1, nonce="first", base_digest=BASE)
    first, again = (
        unseal(take_part(pack_task(t), parts)) for t in (task, replace(task, nonce="second"))
    )
    assert again.payload == first.payload
    assert (first.nonce, again.nonce) == ("first", "second")  # each seal is for its attempt
    assert spent == ["first"]
    assert parts.trainer.fits == 1  # type: ignore[attr-defined]
    take_part(pack_task(replace(task, round_number=2, nonce="third")), parts)
    assert spent == ["first", "third"]
    take_part(pack_task(replace(task, round_number=2, nonce="third")), replace(parts, rank=1))
    assert len(spent) == 3  # with other settings it is another question


@pytest.mark.parametrize(("candidate", "said"), [(7, b"fine"), (8, b"worse")])
def test_a_device_judges_with_one_word(tmp_path: Path, candidate: int, said: bytes) -> None:
    task = Task(
        kind="judge",
        round_number=1,
        nonce="n",
        base_digest=BASE,
        candidate=CODEC.pack_state(a_state(candidate)),
    )
    assert unseal(take_part(pack_task(task), a_device(tmp_path, "a"))).payload == said
