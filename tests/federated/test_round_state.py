"""The server's memory: whole after a crash at any moment; one server at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.federated.learning_stand_ins import CODEC, a_state, an_update

from floe.core.errors import BadRequest, BadRound, Busy
from floe.federated.rounds import (
    Opened,
    Task,
    failure_in,
    pack_failure,
    pack_task,
    seed_of,
    select,
    unpack_task,
)
from floe.federated.state import KEPT_ROUNDS, Memory, Outbox, StateFolder

OPENED = Opened(round_number=1, nonce="n", selected=("a", "b"), clusters={"a": "", "b": "x"})


def folder(path: Path) -> StateFolder:
    return StateFolder(path / "fed", codec=CODEC)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = folder(tmp_path)
    memory = Memory(base_digest="base", opened=OPENED, clusters={"a": "x"}, groups={"k": [1]})
    memory = memory.after(replace(OPENED, round_number=0), ("a",), advanced=True)
    state.write(replace(memory, opened=OPENED))
    assert folder(tmp_path).read("base") == replace(memory, opened=OPENED)


def test_a_new_federation_begins_at_round_one(tmp_path: Path) -> None:
    assert folder(tmp_path).read("base") == Memory(base_digest="base")


def test_another_base_a_newer_version_and_damage_are_said(tmp_path: Path) -> None:
    state = folder(tmp_path)
    state.write(Memory(base_digest="base"))
    with pytest.raises(BadRound, match=r"is of another base model: give federated\.name another"):
        state.read("other")
    path = state.folder / "state.json"
    path.write_text(json.dumps({"format": 99}))
    with pytest.raises(BadRound, match="is of another version of Floe"):
        state.read("base")
    path.write_text("{")
    with pytest.raises(BadRound, match="cannot be read: put it back from a copy"):
        state.read("base")


def test_adapters_are_kept_while_they_are_named(tmp_path: Path) -> None:
    state = folder(tmp_path)
    one, two = state.put_adapter(a_state(1)), state.put_adapter(a_state(2))
    state.write(Memory(base_digest="base", adapters={"x": two}))
    found = state.adapter(two)
    assert found is not None
    assert np.array_equal(found.modules["layer.q"].a_RI, a_state(2).modules["layer.q"].a_RI)
    assert state.adapter("") is None
    with pytest.raises(BadRound, match="cannot be read"):
        state.adapter(one)
    (state.folder / "adapters" / f"{two}.bin").write_bytes(b"bent")
    with pytest.raises(BadRound, match="is damaged: put it back from a copy"):
        state.adapter(two)


def test_past_rounds_are_known_for_a_while() -> None:
    memory = Memory(base_digest="base")
    for n in range(KEPT_ROUNDS + 5):
        memory = memory.after(Opened(round_number=n, nonce=str(n), selected=()), (), advanced=True)
    assert [p.nonce for p in memory.past] == [str(n) for n in range(5, KEPT_ROUNDS + 5)]


def test_one_server_holds_a_folder(tmp_path: Path) -> None:
    held = pytest.raises(Busy, match="another server holds")
    with folder(tmp_path).locked(), held, folder(tmp_path).locked():
        pass
    with folder(tmp_path).locked():
        pass


def _keep_and_die(path: Path, at: int) -> None:
    """Keep updates until the system call number `at` that changes the disk, and be killed there."""
    seen = 0
    real_replace = Path.replace

    def counted(self: Path, target: Path) -> Path:
        nonlocal seen
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        return real_replace(self, target)

    Path.replace = counted  # type: ignore[method-assign, assignment]
    state = folder(path)
    memory = Memory(base_digest="base", opened=OPENED)
    state.write(memory)
    kept = state.kept(OPENED)
    kept.add(an_update("a"), norm=1.0)
    kept.add(an_update("b"), norm=2.0)
    digest = state.put_adapter(a_state(3))
    state.write(replace(memory.after(OPENED, ("a", "b"), advanced=True), adapters={"x": digest}))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("at", range(6))
def test_killed_at_any_rename_the_round_is_open_or_over(tmp_path: Path, at: int) -> None:
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_keep_and_die, args=(tmp_path, at))
    child.start()
    child.join()
    state = folder(tmp_path)
    memory = state.read("base")
    if at >= 5:
        assert child.exitcode == 0
        assert memory.next_round == 2
        assert state.adapter(memory.adapters["x"]) is not None
        return
    assert child.exitcode == -signal.SIGKILL
    assert memory.next_round == 1
    assert memory.opened == (OPENED if at else None)
    kept = state.kept(OPENED)
    assert list(kept.norms) == ["a", "b"][: max(0, at - 1)]
    assert [u.client for u in kept] == list(kept.norms)


def test_updates_of_another_attempt_are_not_taken_over(tmp_path: Path) -> None:
    state = folder(tmp_path)
    state.kept(OPENED).add(an_update("a"), norm=1.0)
    assert list(state.kept(replace(OPENED, nonce="m")).norms) == []
    assert list(state.kept(OPENED).norms) == []


def test_what_is_dropped_is_gone(tmp_path: Path) -> None:
    state = folder(tmp_path)
    kept = state.kept(OPENED)
    kept.add(an_update("a"), norm=1.0)
    kept.add(an_update("b", 1), norm=2.0)
    kept.drop("a")
    assert list(kept.norms) == list(state.kept(OPENED).norms) == ["b"]


def test_an_outbox_knows_its_last_answer(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    assert outbox.get("q") is None
    outbox.put("q", b"an\nswer")
    assert (outbox.get("q"), outbox.get("p")) == (b"an\nswer", None)


def test_a_task_is_read_as_it_was_written() -> None:
    task = Task(
        kind="judge",
        round_number=2,
        nonce="n",
        base_digest="b",
        adapter=b"one",
        candidate=b"two",
        margin=0.5,
    )
    read = unpack_task(pack_task(task))
    assert (read.kind, read.adapter, read.candidate, read.margin) == ("judge", b"one", b"two", 0.5)


@pytest.mark.parametrize("data", [b"", b"FLOETASK", b"FLOETASK\xff\xff\xff\xff", b"x" * 50])
def test_what_is_no_task_is_said(data: bytes) -> None:
    with pytest.raises(BadRequest, match="the server's task is damaged or of another version"):
        unpack_task(data)


def test_an_unknown_kind_of_task_is_said() -> None:
    task = Task(kind="dance", round_number=1, nonce="n", base_digest="b")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="the server asks for 'dance'; update this device"):
        unpack_task(pack_task(task))


def test_c31_a_devices_failure_crosses_with_its_kind_alone() -> None:
    data = pack_failure(BadRound("secret path"))
    assert failure_in(data) == "round_error"
    assert failure_in(data[:-5]) == "failed"
    assert failure_in(b"anything else") == ""


def test_a_share_of_devices_is_drawn_at_random_and_at_least_so_many() -> None:
    names = [f"d{n}" for n in range(10)]
    drawn = select(names, fraction=0.3, at_least=2, seed=1)
    assert len(drawn) == 3
    assert drawn == select(names[::-1], fraction=0.3, at_least=2, seed=1)
    assert drawn != select(names, fraction=0.3, at_least=2, seed=2)
    assert len(select(names, fraction=0.01, at_least=4, seed=1)) == 4
    assert len(select(names[:2], fraction=1.0, at_least=4, seed=1)) == 2
    counts = [
        sum(n in select(names, fraction=0.3, at_least=1, seed=s) for s in range(400)) for n in names
    ]
    assert min(counts) > 80 and max(counts) < 160


def test_seeds_differ_by_every_part() -> None:
    assert len({seed_of(1, "a"), seed_of(1, "b"), seed_of(2, "a"), seed_of(1, "a", 0)}) == 4
    assert seed_of(1, "a") == seed_of(1, "a") < 2**62
