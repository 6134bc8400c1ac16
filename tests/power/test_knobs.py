"""Knobs on fake sysfs trees: bounds, all or none, rights, and the way back."""

# ruff: noqa: N802 - the fakes bear the names of the library

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRequest, KnobFailed, NotAllowed
from floe.power.base import Domain, Knobs, Saved
from floe.power.knobs import files
from floe.power.knobs.cpufreq import cpufreq_knobs
from floe.power.knobs.devfreq import devfreq_knobs
from floe.power.knobs.nvml import NvmlKnobs
from floe.power.knobs.nvpmodel import NvpmodelKnobs
from floe.power.knobs.probe import open_knobs
from floe.power.knobs.simulated import NoKnobs, SimulatedKnobs
from floe.power.switch import measure_switch_ms
from floe.testing.fake_sysfs import cpu_policy, devfreq_gpu, jetson_memory, write_tree


def numbers(folder: Path, *names: str) -> list[int]:
    return [int((folder / name).read_text()) for name in names]


BOUNDS = ("scaling_min_freq", "scaling_max_freq")


def test_a_clock_is_held_by_both_bounds_and_put_back(tmp_path: Path) -> None:
    policy = cpu_policy(tmp_path)
    knobs = cpufreq_knobs(tmp_path)
    assert knobs.domains == (Domain(name="cpu", steps_mhz=(600, 900, 1200, 1500)),)
    assert knobs.read() == {"cpu": 1200.0} and knobs.advice_only == ""
    saved = knobs.save()
    knobs.apply({"cpu": 950})
    assert numbers(policy, *BOUNDS) == [900_000, 900_000]
    assert knobs.put_back(saved) == ()
    assert numbers(policy, *BOUNDS) == [600_000, 1_500_000]


class Strict:
    """A kernel that refuses a lower bound above the upper one, as cpufreq does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Path) -> None:
        real = Path.write_text

        def write(path: Path, text: str, *args: Any, **kw: Any) -> int:
            if path.parent == policy:
                low, high = numbers(policy, *BOUNDS)
                new = int(text)
                if (path.name == BOUNDS[0] and new > high) or (
                    path.name == BOUNDS[1] and new < low
                ):
                    raise OSError(22, "Invalid argument")
            return real(path, text, *args, **kw)

        monkeypatch.setattr(Path, "write_text", write)


def test_bounds_never_cross_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = cpu_policy(tmp_path)
    knobs = cpufreq_knobs(tmp_path)
    saved = knobs.save()
    Strict(monkeypatch, policy)
    for mhz in (600, 1500, 900, 1200, 600):
        knobs.apply({"cpu": mhz})
        assert numbers(policy, *BOUNDS) == [mhz * 1000, mhz * 1000]
    assert knobs.put_back(saved) == ()
    assert numbers(policy, *BOUNDS) == [600_000, 1_500_000]


@pytest.mark.parametrize("mhz", [599, 1501, float("nan"), float("inf"), -5])
def test_e07_a_clock_outside_the_bounds_is_refused(tmp_path: Path, mhz: float) -> None:
    policy = cpu_policy(tmp_path)
    with pytest.raises(BadRequest, match="outside 600 to 1500 MHz"):
        cpufreq_knobs(tmp_path).apply({"cpu": mhz})
    assert numbers(policy, *BOUNDS) == [600_000, 1_500_000]


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=9, unique=True), st.floats(0, 5000))
def test_e07_the_nearest_step_is_a_step_within_bounds(steps: list[int], mhz: float) -> None:
    domain = Domain(name="d", steps_mhz=tuple(sorted(float(s) for s in steps)))
    near = domain.nearest(mhz)
    assert near in domain.steps_mhz
    assert all(abs(near - mhz) <= abs(s - mhz) for s in domain.steps_mhz)
    free = Domain(name="d", steps_mhz=domain.steps_mhz, is_continuous=True).nearest(mhz)
    assert min(steps) <= free <= max(steps)


def test_an_unknown_clock_is_named(tmp_path: Path) -> None:
    cpu_policy(tmp_path)
    with pytest.raises(BadRequest, match="no clock 'gpu' here; known: cpu"):
        cpufreq_knobs(tmp_path).apply({"gpu": 900})


def test_a_driver_without_a_list_takes_any_clock(tmp_path: Path) -> None:
    policy = cpu_policy(tmp_path, listed=False)
    knobs = cpufreq_knobs(tmp_path)
    knobs.apply({"cpu": 777})
    assert numbers(policy, *BOUNDS) == [777_000, 777_000]


def test_clusters_move_together_within_the_bounds_they_share(tmp_path: Path) -> None:
    first, second = cpu_policy(tmp_path, 0), cpu_policy(tmp_path, 4)
    write_tree(second, {"cpuinfo_max_freq": 1_200_000})
    write_tree(second, {"scaling_available_frequencies": "600000 900000 1200000"})
    knobs = cpufreq_knobs(tmp_path)
    assert knobs.domains[0].steps_mhz == (600, 900, 1200)
    knobs.apply({"cpu": 900})
    assert numbers(first, *BOUNDS) == numbers(second, *BOUNDS) == [900_000, 900_000]


def test_a_half_failed_write_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cpu_policy(tmp_path, 0), cpu_policy(tmp_path, 4)
    real = Path.write_text

    def write(path: Path, text: str, *args: Any, **kw: Any) -> int:
        if path == second / "scaling_max_freq" and text == "900000":
            raise OSError(5, "Input/output error")
        return real(path, text, *args, **kw)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(KnobFailed, match="did not take 900000: Input/output error; nothing was"):
        cpufreq_knobs(tmp_path).apply({"cpu": 900})
    for policy in (first, second):
        assert numbers(policy, *BOUNDS) == [600_000, 1_500_000]


@pytest.mark.parametrize("held", ["", "max"])
def test_bounds_that_cannot_be_read_change_nothing(tmp_path: Path, held: str) -> None:
    first, second = cpu_policy(tmp_path, 0), cpu_policy(tmp_path, 4)
    knobs = cpufreq_knobs(tmp_path)
    (second / "scaling_max_freq").write_text(held)
    with pytest.raises(KnobFailed, match=r"scaling_max_freq cannot be read \(ValueError\); noth"):
        knobs.apply({"cpu": 900})
    assert numbers(first, *BOUNDS) == [600_000, 1_500_000]


def test_e19_without_rights_there_is_advice_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_policy(tmp_path)
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    knobs = cpufreq_knobs(tmp_path)
    assert "run as root" in knobs.advice_only and knobs.read() == {"cpu": 1200.0}
    with pytest.raises(NotAllowed, match="cannot be set: no right to write"):
        knobs.apply({"cpu": 900})


def test_a_jetsons_gpu_and_memory(tmp_path: Path) -> None:
    gpu, emc = devfreq_gpu(tmp_path), jetson_memory(tmp_path)
    knobs = devfreq_knobs(tmp_path)
    assert [d.name for d in knobs.domains] == ["gpu", "emc"]
    assert knobs.read() == {"gpu": 612.0, "emc": 2133.0}
    saved = knobs.save()
    knobs.apply({"gpu": 1020, "emc": 665})
    assert numbers(gpu, "min_freq", "max_freq") == [1_020_000_000] * 2
    assert numbers(emc, "rate", "mrq_rate_locked") == [665_000_000, 1]
    assert knobs.put_back(saved) == ()
    assert numbers(gpu, "min_freq", "max_freq") == [306_000_000, 1_020_000_000]
    assert numbers(emc, "rate", "mrq_rate_locked") == [2_133_000_000, 0]


def test_devices_that_are_no_gpu_are_left_alone(tmp_path: Path) -> None:
    devfreq_gpu(tmp_path, "15340000.vic")
    assert devfreq_knobs(tmp_path).domains == ()
    assert devfreq_knobs(tmp_path).advice_only == "this machine offers no such clocks"


def test_all_parts_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, gpu = cpu_policy(tmp_path), devfreq_gpu(tmp_path)
    knobs = open_knobs(root=tmp_path)
    assert [d.name for d in knobs.domains] == ["cpu", "gpu"] and knobs.name == "cpufreq+devfreq"
    real = Path.write_text

    def write(path: Path, text: str, *args: Any, **kw: Any) -> int:
        if path.parent == gpu and text == "612000000":
            raise OSError(1, "Operation not permitted")
        return real(path, text, *args, **kw)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(KnobFailed):
        knobs.apply({"cpu": 900, "gpu": 612})
    assert numbers(policy, *BOUNDS) == [600_000, 1_500_000]
    with pytest.raises(BadRequest, match="known: cpu, gpu"):
        knobs.apply({"emc": 1})
    assert knobs.owns(str(policy / BOUNDS[0])) and not knobs.owns("/etc/passwd")


class FakeGpu:
    """As much of pynvml as the knobs need."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM = 0, 2

    class NVMLError(Exception):
        pass

    class NVMLError_NoPermission(NVMLError):  # noqa: N801 - the library's name
        pass

    def __init__(self, *, architecture: int = 8, fails: str = "", denied: bool = False) -> None:
        self.architecture, self.fails, self.denied = architecture, fails, denied
        self.locked: dict[str, tuple[int, int]] = {}

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetSupportedMemoryClocks(self, handle: int) -> list[int]:
        return [9501, 810]

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle: int, memory: int) -> list[int]:
        return [1980, 1410, 210]

    def nvmlDeviceGetArchitecture(self, handle: int) -> int:
        return self.architecture

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1410 if kind == self.NVML_CLOCK_GRAPHICS else 9501

    def nvmlDeviceSetGpuLockedClocks(self, handle: int, low: int, high: int) -> None:
        self._set("gpu", low, high)

    def nvmlDeviceSetMemoryLockedClocks(self, handle: int, low: int, high: int) -> None:
        self._set("emc", low, high)

    def nvmlDeviceResetGpuLockedClocks(self, handle: int) -> None:
        self.locked.pop("gpu", None)

    def nvmlDeviceResetMemoryLockedClocks(self, handle: int) -> None:
        self.locked.pop("emc", None)

    def _set(self, name: str, low: int, high: int) -> None:
        if self.denied:
            raise self.NVMLError_NoPermission
        if self.fails == name:
            raise self.NVMLError("Unknown Error")
        self.locked[name] = (low, high)


def test_e10_e20_gpu_clocks_are_locked_and_unlocked() -> None:
    gpu = FakeGpu()
    knobs = NvmlKnobs(load=lambda: (gpu, ""))
    assert [d.name for d in knobs.domains] == ["gpu", "emc"]
    assert knobs.read() == {"gpu": 1410.0, "emc": 9501.0}
    saved = knobs.save()
    knobs.apply({"gpu": 1400, "emc": 810})
    assert gpu.locked == {"gpu": (1410, 1410), "emc": (810, 810)}
    assert knobs.put_back(saved) == () and gpu.locked == {}


def test_e20_an_older_gpu_has_no_memory_clock() -> None:
    knobs = NvmlKnobs(load=lambda: (FakeGpu(architecture=6), ""))
    assert [d.name for d in knobs.domains] == ["gpu"]


def test_a_gpu_takes_all_or_none_and_says_why() -> None:
    gpu = FakeGpu(fails="emc")
    with pytest.raises(KnobFailed, match="did not take emc: Unknown Error; nothing was changed"):
        NvmlKnobs(load=lambda: (gpu, "")).apply({"gpu": 1410, "emc": 810})
    assert gpu.locked == {}
    with pytest.raises(NotAllowed, match="run as root"):
        NvmlKnobs(load=lambda: (FakeGpu(denied=True), "")).apply({"gpu": 1410})
    none = NvmlKnobs(load=lambda: (None, "no NVIDIA driver"))
    assert none.domains == () and none.advice_only == "no NVIDIA driver"


class Tool:
    """nvpmodel, as far as the knobs call it."""

    def __init__(self, said: str = "NV Power Mode: 15W\n0\n", refuses: bool = False) -> None:
        self.said, self.refuses, self.calls = said, refuses, [["x"]]

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str]:
        self.calls.append(list(arguments))
        if arguments[0] == "-q":
            return 0, self.said
        return (1, "reboot required") if self.refuses else (0, "")


def modes(tmp_path: Path) -> Path:
    conf = tmp_path / "nvpmodel.conf"
    conf.write_text("< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=2 NAME=MAXN >\n")
    return conf


def test_a_power_mode_is_switched_and_put_back(tmp_path: Path) -> None:
    tool = Tool()
    knobs = NvpmodelKnobs(run=tool, conf=modes(tmp_path))
    assert knobs.read() == {"mode": 0.0}
    saved = knobs.save()
    knobs.apply({"mode": 2})
    assert knobs.put_back(saved) == ()
    assert [c for c in tool.calls if c[0] == "-m"] == [["-m", "2"], ["-m", "0"]]
    with pytest.raises(BadRequest, match="no power mode mode = 1"):
        knobs.apply({"mode": 1})
    with pytest.raises(KnobFailed, match="refused mode 2: reboot required"):
        NvpmodelKnobs(run=Tool(refuses=True), conf=modes(tmp_path)).apply({"mode": 2})


def test_e02_a_board_that_tells_no_mode_is_left_alone(tmp_path: Path) -> None:
    knobs = NvpmodelKnobs(run=Tool(said="NV Power Mode: None\n"), conf=modes(tmp_path))
    assert knobs.domains == () and knobs.read() == {} and knobs.save() == ()
    assert knobs.advice_only == "nvpmodel tells no current mode"
    assert "lists no power mode" in NvpmodelKnobs(run=Tool(), conf=tmp_path / "no").advice_only
    assert (
        "needs root" in NvpmodelKnobs(run=Tool(), conf=modes(tmp_path), is_root=False).advice_only
    )


def test_names_of_knobs(tmp_path: Path) -> None:
    assert open_knobs(root=tmp_path).name == open_knobs("noop", root=tmp_path).name == "noop"
    with pytest.raises(BadConfig, match=r"power\.knobs must be one of auto"):
        open_knobs("cpu", root=tmp_path)
    nothing = NoKnobs()
    nothing.apply({})
    with pytest.raises(BadRequest, match="there are no clocks here"):
        nothing.apply({"cpu": 1})
    assert nothing.put_back([Saved(place="x", value="1")]) == (
        "x: this machine offers no clocks to set",
    )


def simulated() -> SimulatedKnobs:
    return SimulatedKnobs(
        domains=[
            Domain(name="gpu", steps_mhz=(300.0, 600.0, 900.0)),
            Domain(name="emc", steps_mhz=(200.0, 3200.0), is_continuous=True),
        ]
    )


def test_simulated_clocks() -> None:
    knobs = simulated()
    assert knobs.read() == {"gpu": 900.0, "emc": 3200.0}
    saved = knobs.save()
    knobs.apply({"gpu": 500, "emc": 777})
    assert knobs.read() == {"gpu": 600.0, "emc": 777.0}
    with pytest.raises(BadRequest, match="emc = 5000 MHz is outside"):
        knobs.apply({"gpu": 300, "emc": 5000})
    assert knobs.read()["gpu"] == 600.0
    assert knobs.put_back(saved) == () and knobs.read()["gpu"] == 900.0


def test_the_cost_of_a_switch_is_measured_and_the_clocks_stay(tmp_path: Path) -> None:
    now = 0.0

    class Slow(SimulatedKnobs):
        def apply(self, clocks: Any) -> None:
            nonlocal now
            now += 0.003
            super().apply(clocks)

    def clock_s() -> float:
        return now

    slow = Slow(domains=simulated().domains)
    before = slow.read()
    costs = measure_switch_ms(slow, repeats=2, clock_s=clock_s)
    assert costs == {"gpu": pytest.approx(3.0), "emc": pytest.approx(3.0)}
    assert slow.read() == before
    cpu_policy(tmp_path)
    stuck: Knobs = cpufreq_knobs(tmp_path)  # its current clock is a file that nobody moves

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    costs = measure_switch_ms(stuck, repeats=1, clock_s=clock_s, sleep=sleep)
    assert 25.0 <= costs["cpu"] <= 60.0
    assert measure_switch_ms(NoKnobs()) == {}
