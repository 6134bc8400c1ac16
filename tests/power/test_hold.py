"""Invariant 8: clocks are put back on exit, exception, SIGTERM, and after kill -9."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floe.core.errors import Busy, KnobFailed
from floe.power.base import Domain
from floe.power.hold import held, holder, repair
from floe.power.knobs.cpufreq import cpufreq_knobs
from floe.power.knobs.simulated import NoKnobs, SimulatedKnobs
from floe.testing.fake_sysfs import cpu_policy

BOUNDS = ("scaling_min_freq", "scaling_max_freq")
HOLDER = """
import sys, time
from pathlib import Path
from floe.power.hold import held
from floe.power.knobs.cpufreq import cpufreq_knobs
root, folder = map(Path, sys.argv[1:3])
with held(cpufreq_knobs(root), folder=folder) as knobs:
    knobs.apply({"cpu": 600})
    print("held", flush=True)
    while True:
        time.sleep(60)
"""


def bounds(policy: Path) -> list[int]:
    return [int((policy / name).read_text()) for name in BOUNDS]


FREE, HELD = [600_000, 1_500_000], [600_000, 600_000]


@contextmanager
def holding(root: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the clocks; dead at the end of the block."""
    command = [sys.executable, "-c", HOLDER, str(root), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_they_are_put_back_on_exit_and_exception(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    with held(cpufreq_knobs(tmp_path), folder=folder) as knobs:
        knobs.apply({"cpu": 600})
        assert bounds(policy) == HELD and (folder / "lease.json").exists()
    assert bounds(policy) == FREE and not (folder / "lease.json").exists()
    with pytest.raises(ZeroDivisionError), held(cpufreq_knobs(tmp_path), folder=folder) as knobs:
        knobs.apply({"cpu": 600})
        _ = 1 / 0
    assert bounds(policy) == FREE and holder(folder) is None


def test_e17_sigterm_puts_them_back(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    with holding(tmp_path, folder) as process:
        assert bounds(policy) == HELD and holder(folder) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert bounds(policy) == FREE and not (folder / "lease.json").exists()


def test_e17_kill_9_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    with holding(tmp_path, folder):
        pass
    assert bounds(policy) == HELD
    with held(cpufreq_knobs(tmp_path), folder=folder):
        assert bounds(policy) == FREE  # and these are what is saved now
    assert bounds(policy) == FREE
    with holding(tmp_path, folder):
        pass
    assert repair(cpufreq_knobs(tmp_path), folder=folder).state.endswith("were put back")
    assert bounds(policy) == FREE
    assert repair(cpufreq_knobs(tmp_path), folder=folder).state == "nothing was left behind"


def test_a_second_holder_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    with holding(tmp_path, folder) as process:
        with (
            pytest.raises(Busy, match=f"held by process {process.pid}"),
            held(cpufreq_knobs(tmp_path), folder=folder),
        ):
            raise AssertionError("a second holder came in")
        with pytest.raises(Busy):
            repair(cpufreq_knobs(tmp_path), folder=folder)
        assert bounds(policy) == HELD


def test_asking_who_holds_them_writes_nothing_and_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_policy(tmp_path)
    folder = tmp_path / "power"
    assert holder(folder) is None and not folder.exists()
    with held(cpufreq_knobs(tmp_path), folder=folder):
        assert holder(folder) == os.getpid()
    lock = folder / "lease.lock"
    lock.write_text("1")
    assert holder(folder) is None and lock.read_text() == "1"
    asked = lock.open("rb")
    fcntl.flock(asked, fcntl.LOCK_SH)
    with (
        monkeypatch.context() as patch,
        pytest.raises(Busy, match="held by process"),
    ):
        patch.setattr(time, "sleep", lambda _: None)
        repair(cpufreq_knobs(tmp_path), folder=folder)
    monkeypatch.setattr(time, "sleep", lambda wait_s: asked.close() if wait_s else None)
    with held(cpufreq_knobs(tmp_path), folder=folder):
        assert holder(folder) == os.getpid()


def left_behind(folder: Path, **changes: object) -> Path:
    lease = folder / "lease.json"
    folder.mkdir()
    kept = {"version": 1, "pid": 1, "boot_id": "this", "saved": []} | changes
    lease.write_text(json.dumps(kept))
    return lease


def test_after_a_reboot_nothing_is_written(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    saved = [{"place": str(policy / BOUNDS[1]), "value": "900000"}]
    lease = left_behind(folder, boot_id="another", saved=saved)
    found = repair(cpufreq_knobs(tmp_path), folder=folder, boot_id="this")
    assert "restarted since" in found.state and not lease.exists() and bounds(policy) == FREE


def test_a_lease_cannot_write_where_knobs_do_not(tmp_path: Path) -> None:
    cpu_policy(tmp_path)
    folder, victim = tmp_path / "power", tmp_path / "victim"
    victim.write_text("precious")
    lease = left_behind(folder, saved=[{"place": str(victim), "value": "lost"}])
    found = repair(cpufreq_knobs(tmp_path), folder=folder, boot_id="this")
    assert victim.read_text() == "precious" and lease.exists()
    assert "not one of cpufreq" in found.faults[0]
    with (
        pytest.raises(KnobFailed, match="could not be put back"),
        held(cpufreq_knobs(tmp_path), folder=folder, boot_id="this"),
    ):
        raise AssertionError("went on over an unrepaired lease")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2, "saved": []}'])
def test_a_damaged_lease_is_set_aside(tmp_path: Path, text: str) -> None:
    cpu_policy(tmp_path)
    folder = tmp_path / "power"
    folder.mkdir()
    (folder / "lease.json").write_text(text)
    assert "damaged" in repair(cpufreq_knobs(tmp_path), folder=folder).state
    assert (folder / "lease.bad").read_text() == text


def test_what_cannot_be_put_back_is_said_and_kept(tmp_path: Path) -> None:
    policy, folder = cpu_policy(tmp_path), tmp_path / "power"
    with (
        pytest.raises(KnobFailed, match=r"clocks could not be put back .*floe power reset"),
        held(cpufreq_knobs(tmp_path), folder=folder) as knobs,
    ):
        knobs.apply({"cpu": 600})
        (policy / BOUNDS[1]).unlink()
        (policy / BOUNDS[1]).mkdir()
    assert (folder / "lease.json").exists()
    (policy / BOUNDS[1]).rmdir()
    (policy / BOUNDS[1]).write_text("600000")
    assert repair(cpufreq_knobs(tmp_path), folder=folder).faults == ()
    assert bounds(policy) == FREE


def test_knobs_for_advice_are_held_without_a_lease(tmp_path: Path) -> None:
    with held(NoKnobs(), folder=tmp_path / "power") as knobs:
        assert knobs.advice_only
    assert not (tmp_path / "power").exists()


def test_a_thread_may_hold_and_signals_stay_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    knobs = SimulatedKnobs(domains=[Domain(name="gpu", steps_mhz=(1.0, 2.0))])

    def hold() -> None:
        with held(knobs, folder=tmp_path / "power"):
            knobs.apply({"gpu": 1.0})

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert knobs.read() == {"gpu": 2.0}
    hold()
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == before
    assert os.getpid() != holder(tmp_path / "power")
