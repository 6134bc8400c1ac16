"""What the router learned survives a kill, and a file that does not belong is kept aside."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from floe.core.errors import BadConfig
from floe.core.outcome import Outcome
from floe.core.route import Route
from floe.core.sections import RoutingConfig
from floe.routing import learner as learner_module
from floe.routing.bandit import Bandit, Settings
from floe.routing.learner import Learner
from floe.routing.state import Belongs, keep_aside, load_state, save_state

BELONGS = Belongs(model="m" * 64, encoder="e" * 64, width=3)


def trained() -> Bandit:
    one = Bandit(Settings(width=3))
    for n in range(20):
        one.update("ab"[n % 2], np.array([n / 20, 0.5, 1.0]), n / 10)
    assert one.warm_start("c", "a", trust=0.5)
    return one


def test_a_state_comes_back_the_same(tmp_path: Path) -> None:
    one, path = trained(), tmp_path / "state"
    save_state(path, BELONGS, *one.arrays())
    again = Bandit(Settings(width=3))
    again.restore(*load_state(path, BELONGS))
    x = np.array([0.3, -0.2, 1.0])
    for name in ("learned", "bonus"):
        before, after = (getattr(b.scores(list("abcd"), x), name) for b in (one, again))
        assert after == pytest.approx(before, abs=1e-9)
    assert [again.phase(a) for a in "abcd"] == ["trained", "trained", "warm", "cold"]
    assert (path.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize(
    ("belongs", "why"),
    [
        (replace(BELONGS, encoder="x"), "was learned with another encoder; learning starts anew"),
        (replace(BELONGS, model="x"), "was learned with another model; learning starts anew"),
        (replace(BELONGS, width=9), "with routing.context_width 2; it is 8 now"),
    ],
)
def test_b35_a_state_of_something_else_is_refused(
    tmp_path: Path, belongs: Belongs, why: str
) -> None:
    path = tmp_path / "state"
    save_state(path, BELONGS, *trained().arrays())
    with pytest.raises(BadConfig, match=why):
        load_state(path, belongs)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "bit":
        data[-5] ^= 4
    elif how == "cut":
        data = data[:-9]
    elif how == "text":
        data = bytearray(b"not a state")
    elif how == "empty":
        data = bytearray()
    elif how == "tensors only":
        data = bytearray(save(load(bytes(data))))
    elif how == "version":
        head = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])[
            "__metadata__"]["floe"])  # fmt: skip
        head["version"] = 2
        data = bytearray(save(load(bytes(data)), metadata={"floe": json.dumps(head)}))
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("bit", "is damaged: its digest does not match"),
        ("cut", "is damaged: its tables cannot be read"),
        ("text", "is no state of the router, or it is damaged"),
        ("empty", "is no state of the router, or it is damaged"),
        ("tensors only", "is no state of the router, or it is damaged"),
        ("version", "has version 2; this Floe reads version 1"),
    ],
)
def test_a_damaged_state_is_kept_aside_and_learning_starts_anew(
    tmp_path: Path, how: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    learn(opened(path), 1)
    damage(path, how)
    bytes_before = path.read_bytes()
    with caplog.at_level(logging.WARNING, "floe.routing"):
        fresh = opened(path)
    assert why in fresh.notice
    assert why in caplog.text
    assert fresh.bandit.arms() == ()
    assert path.read_bytes() == bytes_before  # nothing learned yet, nothing touched
    learn(fresh, 2)
    assert (tmp_path / "state.unused-1").read_bytes() == bytes_before
    assert opened(path).bandit.observations == 2


def test_names_of_kept_files_do_not_collide(tmp_path: Path) -> None:
    for n in (1, 2):
        path = tmp_path / "state"
        path.write_text(str(n))
        assert keep_aside(path).name == f"state.unused-{n}"


def test_a_file_that_cannot_be_read_or_is_too_large_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadConfig, match="cannot be read: Is a directory"):
        load_state(tmp_path, BELONGS)
    path = tmp_path / "state"
    path.write_bytes(b"x" * 10)
    monkeypatch.setattr("floe.routing.state.MAX_BYTES", 5)
    with pytest.raises(BadConfig, match="is too large for a state of the router"):
        load_state(path, BELONGS)


def opened(path: Path) -> Learner:
    return Learner(
        config=RoutingConfig(agreement=True),
        encoder_digest="e" * 64,
        embedding_width=4,
        model="m",
        path=path,
    )


def outcome(n: int = 0, agreement: float | None = -1.0) -> Outcome:
    return Outcome(
        request_id=f"r{n}", tenant="default", route=Route(), topic="", wait_ms=0.0,
        first_token_ms=None, total_ms=1.0, completion_tokens=20, agreement=agreement,
        agreement_tokens=20,
    )  # fmt: skip


def learn(learner: Learner, times: int) -> None:
    for n in range(times):
        assert learner.learn(
            outcome(n), np.array([0.5, 0.5, 0.5, 0.5], dtype=np.float32), {}, threshold=0.3
        )
    learner.close()


def test_it_is_saved_in_the_background_after_so_many_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Now:
        def __init__(self, target: object, name: str) -> None:
            self.target = target

        def start(self) -> None:
            started.append(True)
            self.target()  # type: ignore[operator]

    monkeypatch.setattr(learner_module.threading, "Thread", Now)
    path, one = tmp_path / "deep" / "state", None
    one = opened(path)
    for n in range(learner_module.SAVE_AFTER):
        assert not path.exists()
        one.learn(outcome(n), np.ones(4, dtype=np.float32) / 2, {}, threshold=0.3)
    assert started == [True]
    assert opened(path).bandit.observations == learner_module.SAVE_AFTER


def test_a_disk_that_cannot_be_written_is_counted_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = opened(tmp_path / "file" / "state")
    with caplog.at_level(logging.WARNING, "floe.routing"):
        learn(one, 1)
    assert one.count["save_failures"] == 1
    assert "the router's state was not saved" in caplog.text
    assert one.bandit.observations == 1


CHILD = """
import sys
from pathlib import Path
import numpy as np
from floe.core.sections import RoutingConfig
from floe.core.outcome import Outcome
from floe.core.route import Route
from floe.routing.learner import Learner
one = Learner(config=RoutingConfig(agreement=True), encoder_digest="e" * 64, embedding_width=4,
              model="m", path=Path(sys.argv[1]))
rng = np.random.default_rng(0)
while True:
    vector = rng.standard_normal(4).astype(np.float32)
    one.learn(Outcome(request_id="r", tenant="default", route=Route(), topic="", wait_ms=0.0,
        first_token_ms=None, total_ms=1.0, completion_tokens=20, agreement=-1.0,
        agreement_tokens=20), vector, {}, threshold=0.3)
    one.save()
    print(one.bandit.observations, flush=True)
"""


def test_what_was_saved_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "state"
    least = 0
    for saves in (1, 4, 11):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(saves):
            line = child.stdout.readline()
        child.send_signal(signal.SIGKILL)  # most likely within the next save
        child.wait()
        child.stdout.close()
        least = max(least, int(line))
        after = opened(path)
        assert after.notice == ""
        assert after.bandit.observations >= least  # each run goes on from the last
        least = after.bandit.observations
