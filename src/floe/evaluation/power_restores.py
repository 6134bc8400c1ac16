"""Whether clocks are put back: held on a tree of small files, by processes that really die."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from floe.core.errors import Busy, KnobFailed
from floe.power.base import Clocks, Domain
from floe.power.hold import held, repair
from floe.power.knobs.cpufreq import cpufreq_knobs
from floe.power.knobs.many import ManyKnobs
from floe.power.knobs.simulated import SimulatedKnobs

_POLICY = "sys/devices/system/cpu/cpufreq/policy0"
_FREE = {"scaling_min_freq": 600_000, "scaling_max_freq": 1_500_000}
_LOW_MHZ = 600
_HOLDER = """
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


def restores() -> dict[str, bool]:
    """Each way to end, and whether the clocks were as before afterwards."""
    return {f"restores_{name}": _tried(way) for name, way in WAYS.items()}


def _tried(way: Callable[[Path, Path], bool]) -> bool:
    with tempfile.TemporaryDirectory(prefix="floe-power-") as name:
        root = Path(name)
        policy = root / _POLICY
        policy.mkdir(parents=True)
        values = {
            **_FREE, "cpuinfo_min_freq": 600_000, "cpuinfo_max_freq": 1_500_000,
            "scaling_cur_freq": 1_200_000, "scaling_governor": "schedutil",
            "scaling_available_frequencies": "600000 900000 1200000 1500000",
        }  # fmt: skip
        for file, value in values.items():
            (policy / file).write_text(f"{value}\n", encoding="ascii")
        return way(root, root / "state") and _is_free(root)


def _bounds(root: Path) -> dict[str, int]:
    return {name: int((root / _POLICY / name).read_text("ascii")) for name in _FREE}


def _is_free(root: Path) -> bool:
    return _bounds(root) == _FREE


def _is_low(root: Path) -> bool:
    return set(_bounds(root).values()) == {_LOW_MHZ * 1000}


@contextmanager
def _process(root: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the clocks; killed at the end of the block."""
    command = [sys.executable, "-c", _HOLDER, str(root), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "held\n":
                raise KnobFailed("the process that should hold the clocks did not come up")
            yield process
        finally:
            process.kill()


def _exception(root: Path, folder: Path) -> bool:
    try:
        with held(cpufreq_knobs(root), folder=folder) as knobs:
            knobs.apply({"cpu": _LOW_MHZ})
            was_low = _is_low(root)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return was_low


def _sigterm(root: Path, folder: Path) -> bool:
    with _process(root, folder) as process:
        was_low = _is_low(root)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=60) == 128 + signal.SIGTERM and was_low


def _kill9(root: Path, folder: Path) -> bool:
    with _process(root, folder):
        pass
    was_low = _is_low(root)
    return was_low and not repair(cpufreq_knobs(root), folder=folder).faults


class _Refuses(SimulatedKnobs):
    """A clock whose driver takes nothing."""

    def apply(self, clocks: Clocks) -> None:
        """Refuse."""
        raise KnobFailed(f"the driver refused {dict(clocks)}")


def _half_failed_write(root: Path, folder: Path) -> bool:
    """The CPU's clock is written, the GPU's is refused: at once the CPU's is as before."""
    gpu = _Refuses(domains=[Domain(name="gpu", steps_mhz=(1.0, 2.0))])
    with held(ManyKnobs(parts=(cpufreq_knobs(root), gpu)), folder=folder) as knobs:
        try:
            knobs.apply({"cpu": _LOW_MHZ, "gpu": 1.0})
        except KnobFailed:
            return _is_free(root)
    return False


def _second_holder(root: Path, folder: Path) -> bool:
    """Refused while the first lives, who is not disturbed."""
    with _process(root, folder) as process:
        try:
            with held(cpufreq_knobs(root), folder=folder):
                refused = False
        except Busy:
            refused = _is_low(root)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    return refused


WAYS: Mapping[str, Callable[[Path, Path], bool]] = {
    "exception": _exception,
    "sigterm": _sigterm,
    "kill9": _kill9,
    "half_failed_write": _half_failed_write,
    "second_holder": _second_holder,
}
