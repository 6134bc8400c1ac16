"""Privacy spent stays spent: through kills, torn lines, changed files and second processes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("dp_accounting", reason="needs floe[dp]")

from floe.core.errors import BadConfig, FloeError, PrivacySpent
from floe.federated.accountant import epsilon
from floe.federated.dp_ledger import DpLedger
from floe.federated.sampling import Mechanism, Sampling

DELTA = 1e-5
ROUND = Mechanism(noise_multiplier=4.0, sampling=Sampling(kind="all"))
DEAR = Mechanism(noise_multiplier=2.5, sampling=Sampling(kind="all"))


def ledger(path: Path, *, target: float = 3.0) -> DpLedger:
    return DpLedger(path=path, target_epsilon=target, delta=DELTA)


def test_what_is_reserved_is_spent(tmp_path: Path) -> None:
    book = ledger(tmp_path / "dp.jsonl")
    assert book.epsilon() == 0.0
    book.reserve(ROUND, round_number=1, note="medicine")
    book.reserve(DEAR, round_number=2)
    again = ledger(tmp_path / "dp.jsonl")
    assert again.epsilon() == pytest.approx(epsilon([ROUND, DEAR], delta=DELTA))
    assert [e.round_number for e in again.read().entries] == [1, 2]
    assert again.read().entries[0].note == "medicine"
    assert (tmp_path / "dp.jsonl").stat().st_mode & 0o777 == 0o600
    assert book.terms == "delta 1e-05, add_remove, target 3"


def test_a_round_that_would_pass_the_target_is_refused_before_anything(tmp_path: Path) -> None:
    path = tmp_path / "dp.jsonl"
    book, trained = ledger(path), 0
    with pytest.raises(PrivacySpent) as refused:
        for number in range(1, 100):
            book.reserve(ROUND, round_number=number)
            trained += 1
    assert epsilon([ROUND] * trained, delta=DELTA) <= 3.0
    assert epsilon([ROUND] * (trained + 1), delta=DELTA) > 3.0
    assert len(book.read().entries) == trained
    message = str(refused.value)
    assert f"round {trained + 1} would bring epsilon to" in message
    assert "above the target 3 (delta 1e-05, add_remove)" in message
    assert "Nothing was trained" in message


KILLED = """
import os, signal, sys
from pathlib import Path
from floe.federated.dp_ledger import DpLedger
from floe.federated.sampling import Mechanism, Sampling
book = DpLedger(path=Path(sys.argv[1]), target_epsilon=50.0, delta=1e-5)
for number in range(1, 1000):
    book.reserve(
        Mechanism(noise_multiplier=4.0, sampling=Sampling(kind="all")), round_number=number
    )
    print(number, flush=True)  # "training"
"""


def test_a_killed_process_has_spent_what_it_began(tmp_path: Path) -> None:
    path = tmp_path / "dp.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(3)]
    os.kill(process.pid, signal.SIGKILL)
    seen += [int(line) for line in process.stdout]
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    found = ledger(path, target=50.0).read()
    assert len(found.entries) + found.torn >= seen[-1]
    assert [e.round_number for e in found.entries][: len(seen)] == seen
    ledger(path, target=50.0).reserve(ROUND, round_number=len(seen) + 2)
    assert ledger(path, target=50.0).epsilon() >= epsilon([ROUND] * (len(seen) + 1), delta=DELTA)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(1, 260))
def test_a_torn_line_is_spent_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "dp.jsonl"
    book = ledger(path)
    book.reserve(DEAR)
    whole = path.read_bytes()
    book.reserve(ROUND)
    second = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + second[: min(cut, len(second) - 2)])
    assert book.read().torn == 1
    at_least = epsilon([DEAR, DEAR], delta=DELTA)  # as the costliest known
    assert book.epsilon() == pytest.approx(at_least)
    book.reserve(ROUND)
    state = book.read()
    assert state.torn == 0
    assert [e.note for e in state.entries] == ["", "a line torn by a crash", ""]
    assert book.epsilon() == pytest.approx(epsilon([DEAR, DEAR, ROUND], delta=DELTA))


def test_a_torn_first_line_is_not_free(tmp_path: Path) -> None:
    path = tmp_path / "dp.jsonl"
    path.write_bytes(b'{"time": "20')
    assert ledger(path).epsilon() == math.inf
    ledger(path).reserve(DEAR)
    assert ledger(path).epsilon() == pytest.approx(epsilon([DEAR, DEAR], delta=DELTA))


def test_a_torn_line_counts_against_the_target(tmp_path: Path) -> None:
    path = tmp_path / "dp.jsonl"
    target = epsilon([DEAR, ROUND], delta=DELTA) * 1.001
    ledger(path, target=target).reserve(DEAR)
    with path.open("ab") as file:
        file.write(b'{"time"')
    with pytest.raises(PrivacySpent, match=r"1 of it unreadable and counted as the costliest"):
        ledger(path, target=target).reserve(ROUND)


@pytest.mark.parametrize("change", ["noise", "removed", "swapped", "added"])
def test_a_changed_file_stops_everything(tmp_path: Path, change: str) -> None:
    path = tmp_path / "dp.jsonl"
    book = ledger(path)
    for number in (1, 2, 3):
        book.reserve(ROUND, round_number=number)
    lines = path.read_bytes().splitlines()
    if change == "noise":
        lines[1] = json.dumps({**json.loads(lines[1]), "noise_multiplier": 40.0}).encode()
    elif change == "removed":
        del lines[1]
    elif change == "swapped":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines.insert(1, lines[1])
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(FloeError, match=r"was changed at line [23]: what is spent cannot be known"):
        book.reserve(ROUND)
    with pytest.raises(FloeError, match=r"nothing may be trained"):
        book.epsilon()


def test_two_processes_cannot_both_take_the_last_round(tmp_path: Path) -> None:
    path = tmp_path / "dp.jsonl"
    code = KILLED.replace("50.0", "3.0").replace("range(1, 1000)", "range(1, 40)")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    errors = [p.communicate()[1] for p in processes]
    assert all("PrivacySpent" in error for error in errors)
    n = len(ledger(path).read().entries)
    assert epsilon([ROUND] * n, delta=DELTA) <= 3.0 < epsilon([ROUND] * (n + 1), delta=DELTA)


def test_examples_and_clients_have_books_of_their_own(tmp_path: Path) -> None:
    book = ledger(tmp_path / "dp.jsonl")
    book.reserve(ROUND)
    client = Mechanism(noise_multiplier=4.0, sampling=Sampling(kind="all"), unit="client")
    with pytest.raises(BadConfig, match=r"different promises"):
        book.reserve(client)
    other = ledger(tmp_path / "clients.jsonl")
    other.reserve(client)
    assert other.read().mechanisms == (client,)


def test_a_file_that_cannot_be_used_stops_training(tmp_path: Path) -> None:
    folder = tmp_path / "dp.jsonl"
    folder.mkdir()
    with pytest.raises(FloeError, match=r"cannot use the privacy ledger .*Nothing was trained"):
        ledger(folder).reserve(ROUND)
    target = tmp_path / "elsewhere"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FloeError, match=r"cannot use the privacy ledger"):
        ledger(tmp_path / "link").reserve(ROUND)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FloeError, match=r"it is not a regular file"):
        ledger(tmp_path / "fifo").reserve(ROUND)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_c11_targets_out_of_range_are_refused(tmp_path: Path, bad: float) -> None:
    with pytest.raises(BadConfig, match=r"target epsilon is"):
        ledger(tmp_path / "dp.jsonl", target=bad)
    with pytest.raises(BadConfig, match=r"delta is"):
        DpLedger(path=tmp_path / "dp.jsonl", target_epsilon=1.0, delta=bad)
