"""Steps and answers are heard without being held up; joules are booked under their label."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig, Busy, KnobFailed
from floe.core.request import PowerWish, Request, Sampling
from floe.core.sections import PowerConfig
from floe.core.timing import StepTiming, Unwatched, unheard, unwatched
from floe.engine.llamacpp import LlamaCppEngine
from floe.power.base import Clocks, Domain, Label, RailEnergy, Window
from floe.power.boards.catalogue import fitted
from floe.power.boards.generic import MOST_STEPS, generic
from floe.power.books import Books, Spent
from floe.power.build import MODES, controller_for, open_power, own_policy
from floe.power.controllers.learned import Learned
from floe.power.hold import holder
from floe.power.knobs.simulated import NoKnobs, SimulatedKnobs
from floe.power.length import shipped_length_model
from floe.power.listener import MOST_DISTRIBUTIONS, MOST_ITEMS, Lengths, Listener, Sensors
from floe.power.meters.meter import RailMeter
from floe.power.meters.thermal import temperatures, thermal_sensors
from floe.power.pilot import Active, Pilot
from floe.testing.fake_sysfs import cpu_policy, write_tree
from floe.testing.tiny_model import make_tiny_model

BOARD = "odroid-xu3"


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeMeter:
    """Two watts at any time, or whatever `label` says."""

    clock: Clock
    label: Label = "measured"
    name: str = "fake"
    broken: bool = False

    def begin(self) -> object:
        return self.clock.now_s

    def end(self, mark: Any) -> Window:
        if self.broken:
            raise RuntimeError("a meter of a sort")
        spent_s = self.clock.now_s - mark
        joules = None if self.label == "unknown" else 2.0 * spent_s
        rail = RailEnergy(rail="all", energy_j=joules, label=self.label)
        return Window(
            duration_s=spent_s, rails=(rail,), energy_j=joules, label=self.label, counted=("all",)
        )

    def close(self) -> None:
        pass


@dataclass
class World:
    """A listener with a clock of its own, and what it was built of."""

    clock: Clock
    meter: FakeMeter
    listener: Listener
    pilot: Pilot | None
    knobs: Any

    def at(self, now_s: float) -> None:
        assert self.listener.settle()
        self.clock.now_s = now_s

    def figures(self) -> dict[str, float]:
        assert self.listener.settle()
        return {
            r.name + "".join(f" {v}" for v in r.labels.values()): r.value
            for r in self.listener.readings()
        }

    def begin(self, came_s: float = 0.0, **values: Any) -> Any:
        prompt = values.pop("prompt_tokens", 20)
        adapters = values.pop("adapters", 0)
        request = Request(id="r", prompt="hi", **values)
        return self.listener.watch(request, prompt_tokens=prompt, adapters=adapters, came_s=came_s)


@contextmanager
def world(
    config: PowerConfig | None = None, *, controller: str = "", label: Label = "measured",
    knobs: Any = None, **more: Any,
) -> Iterator[World]:  # fmt: skip
    clock, config = Clock(), config or PowerConfig()
    meter, pilot = FakeMeter(clock, label=label), None
    model = fitted(BOARD).model
    knobs = knobs or SimulatedKnobs(domains=model.board.domains)
    if controller:
        made = {
            mode: controller_for(controller, model, home=Path("/nowhere"), mode=mode)
            for mode in MODES
        }
        pilot = Pilot(model=model, controllers=made, knobs=knobs, clock_s=clock)
    listener = Listener(config=config, meter=meter, knobs=knobs, pilot=pilot, clock_s=clock, **more)
    try:
        yield World(clock, meter, listener, pilot, knobs)
    finally:
        listener.close()


def step(phase: Any = "decode", *, tokens: int = 1, ms: float = 10.0) -> StepTiming:
    return StepTiming(
        phase=phase, tokens=tokens, duration_ms=ms, sessions=1, adapters=0, ended_s=0.0
    )


def test_joules_are_shared_by_those_at_work_and_add_up() -> None:
    with world() as w:
        w.at(1.0)  # a second of nothing: 2 J idle
        first = w.begin()
        w.at(2.0)  # 2 J of the first alone
        second = w.begin()
        w.at(4.0)  # 4 J of both
        for _ in range(4):
            first.drawn()
        first.ended()
        first.ended()  # once is enough
        w.at(5.0)  # 2 J of the second alone
        second.ended()
        found = w.figures()
    assert found["power_joules_total measured idle"] == 2.0
    assert found["power_joules_total measured serving"] == 8.0
    assert found["power_request_joules_total measured"] == 8.0
    assert found["power_last_request_joules measured"] == 4.0
    assert found["power_joules_per_token measured"] == 1.0  # the second drew nothing
    assert found["power_requests_total measured"] == 2
    assert found["power_energy_label measured"] == 1.0


def test_e11_e13_what_is_not_known_or_modelled_never_looks_measured() -> None:
    for label in ("unknown", "modelled"):
        with world(label=label) as w:  # type: ignore[arg-type]
            one = w.begin()
            w.at(3.0)
            one.drawn()
            one.ended()
            found = w.figures()
        joules = {name for name in found if "joules" in name}
        assert not any("measured" in name for name in joules)
        assert found[f"power_energy_label {label}"] == 1.0
        assert found["power_requests_total measured"] == 0
        if label == "unknown":
            assert not joules and found["power_unknown_seconds_total"] == 3.0
        else:
            assert {name.split()[1] for name in joules} == {"modelled"}


def test_e08_a_request_with_one_unknown_stretch_is_unknown() -> None:
    with world() as w:
        one, two = w.begin(), w.begin()
        w.at(1.0)
        two.ended()  # all of its stretches are known
        w.at(1.0)
        w.meter.label = "unknown"
        w.at(2.0)
        one.drawn()
        w.at(2.0)
        w.meter.label = "measured"
        w.at(3.0)
        one.ended()
        found = w.figures()
    assert found["power_requests_total unknown"] == found["power_requests_total measured"] == 1
    assert found["power_request_joules_total measured"] == 1.0
    spent = Spent()
    for joules, label in (
        (1.0, "measured"),
        (1.0, "modelled"),
        (None, "unknown"),
        (1.0, "measured"),
    ):
        spent.add(joules, label)  # type: ignore[arg-type]
    assert (spent.energy_j, spent.label) == (None, "unknown")


def test_late_tokens_are_counted_only_where_there_is_a_goal() -> None:
    config = PowerConfig(ttft_slo_ms=100, tpot_slo_ms=50)
    with world(config) as w:
        for at_s, first_s, next_s, wish in (
            (0.0, 0.09, 0.13, None),  # in time
            (1.0, 1.11, 1.15, None),  # late first token
            (2.0, 2.05, 2.11, None),  # late tokens
            (3.0, 3.05, 3.11, 70.0),  # its own goal is wider
            (4.0, 4.11, 4.11, None),  # a single token has no pace
        ):
            w.at(at_s)
            one = w.begin(came_s=at_s, power=PowerWish(latency_slo_ms=wish))
            w.at(first_s)
            one.drawn()
            w.at(next_s)
            if next_s > first_s:
                one.drawn()
            one.ended()
        found = w.figures()
    assert (found["power_slo_requests_total ttft"], found["power_slo_violations_total ttft"]) == (
        5,
        2,
    )
    assert (found["power_slo_requests_total tpot"], found["power_slo_violations_total tpot"]) == (
        4,
        1,
    )
    with world() as w:
        one = w.begin()
        w.at(9.0)
        one.drawn()
        one.ended()
        assert w.figures()["power_slo_requests_total ttft"] == 0


def test_nobody_is_held_up_by_a_thread_that_is_behind() -> None:
    with world(start=False) as w:  # nobody takes anything out
        one = w.begin()
        for _ in range(MOST_ITEMS + 100):
            w.listener.on_step(step())
        one.drawn()
        one.ended()
        lost = {r.name: r.value for r in w.listener.readings()}["power_dropped_steps_total"]
        assert lost == 102  # one place was taken by the beginning
        w.begin().ended()  # beginnings and ends are never lost
        w.listener._thread = threading.Thread(target=w.listener._run)
        w.listener._thread.start()
        assert w.figures()["power_requests_total measured"] == 2


def test_distributions_do_not_pile_up() -> None:
    lengths = Lengths(model=shipped_length_model(), eos_ids=(1,))
    with world(controller="performance", lengths=lengths, start=False) as w:
        one = w.begin()
        for _ in range(100):
            one.log_probs(np.zeros(4))
        assert w.listener._queue.qsize() == MOST_DISTRIBUTIONS
        assert w.listener.dropped == 100 - (MOST_DISTRIBUTIONS - 1)


def test_what_fails_is_counted_and_serving_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with world() as w:
        w.meter.broken = True
        w.begin()
        w.begin()
        assert w.listener.settle()
        w.meter.broken = False
        assert w.figures()["power_failures_total"] >= 2
    assert caplog.text.count("power: RuntimeError; serving goes on") == 1


def test_sensors_are_read_while_the_engine_is_busy() -> None:
    degrees = {"soc": 40.0}
    sensors = Sensors(temperatures=lambda: dict(degrees))
    with world(sensors=sensors, start=False) as w:
        degrees["soc"] = 79.0
        for now_s, seen_c in ((0.5, 40.0), (1.5, 79.0)):
            w.clock.now_s = now_s
            w.listener.on_step(step())
            w.listener._queue.put(None)
            w.listener._run()  # a queue that is never empty for a second
            told = {r.name: r.value for r in w.listener.readings()}
            assert told["power_temperature_celsius"] == seen_c


def test_a_request_whose_end_fails_is_over_all_the_same() -> None:
    with world(controller="race-to-idle") as w:
        low, high = (w.knobs.domains[0].steps_mhz[k] for k in (0, -1))
        one = w.begin()
        w.at(0.1)
        assert w.figures()["power_advised_mhz cpu"] == high
        w.meter.broken = True
        one.ended()
        assert w.listener.settle()
        w.meter.broken = False
        w.begin().ended()
        assert w.figures()["power_advised_mhz cpu"] == low


def test_the_least_budget_of_all_bounds_the_clocks_and_no_request_raises_it() -> None:
    with world(PowerConfig(power_budget_w=2.0), controller="performance") as w:
        w.begin(power=PowerWish(power_budget_w=1000.0))
        bounded = w.figures()["power_advised_mhz cpu"]
        assert bounded < w.knobs.domains[0].steps_mhz[-1]
    with world(controller="performance") as w:
        w.begin()
        high = w.figures()["power_advised_mhz cpu"]
        w.begin(came_s=100.0, power=PowerWish(power_budget_w=2.0))  # not the one in a hurry
        assert w.figures()["power_advised_mhz cpu"] == bounded < high


def test_clocks_follow_phases_and_sink_at_the_end() -> None:
    with world(controller="race-to-idle") as w:
        low, high = (w.knobs.domains[0].steps_mhz[k] for k in (0, -1))
        w.figures()
        one = w.begin()
        assert w.listener.settle() and w.knobs.read() == {"cpu": high}
        for _ in range(17):
            one.drawn()
        found = w.figures()
        # one at the beginning, one at the first token, one after each block of tokens
        assert found["power_decisions_total"] == 1 + 1 + 2
        assert found["power_clock_mhz cpu"] == high and found["power_advice_only"] == 0
        one.ended()
        assert w.figures()["power_advised_mhz cpu"] == low == w.knobs.read()["cpu"]


@dataclass
class Refusing:
    """Knobs that refuse from the first time on."""

    name: str = "refusing"
    advice_only: str = ""
    domains: tuple[Domain, ...] = field(default=fitted(BOARD).model.board.domains)
    tried: int = 0

    def read(self) -> dict[str, float]:
        return {}

    def apply(self, clocks: Clocks) -> None:
        self.tried += 1
        raise KnobFailed("the kernel did not take it")


def test_e19_knobs_that_refuse_are_left_alone_and_advice_goes_on() -> None:
    knobs = Refusing()
    with world(controller="race-to-idle", knobs=knobs) as w:
        w.begin().ended()
        found = w.figures()
        assert (knobs.tried, found["power_advice_only"], found["power_decisions_total"]) == (
            1,
            1,
            2,
        )
        assert w.pilot is not None and w.pilot.fault == "the kernel did not take it"
    with world(controller="performance", knobs=NoKnobs(reason="no rights")) as w:
        w.begin()
        assert w.figures()["power_switches_total"] == 0


@settings(max_examples=60, deadline=None)
@given(
    budget_w=st.floats(0.5, 12.0),
    controller=st.sampled_from(["performance", "powersave", "feedback", "lowest-meeting"]),
)
def test_a_budget_in_watts_bounds_the_clocks(budget_w: float, controller: str) -> None:
    model = fitted(BOARD).model
    made = {mode: controller_for(controller, model, home=Path("/nowhere")) for mode in MODES}
    pilot = Pilot(model=model, controllers=made, knobs=SimulatedKnobs(domains=model.board.domains))
    one = Active(
        prompt_tokens=20, max_tokens=9, ttft_ms=None, tpot_ms=None, budget_w=budget_w,
        mode="balanced", came_s=0.0, adapters=0, cloud=False,
    )  # fmt: skip
    pilot.decide([one], temperature_c=None, battery=None, mean_tokens=0.0)
    drawn_w = model.prefill_w_S[model.index_of(pilot.advised)]
    assert drawn_w <= budget_w or drawn_w == model.prefill_w_S.min()
    free = made["balanced"].decide(pilot._state)  # type: ignore[arg-type]
    if model.prefill_w_S[model.index_of(free)] <= budget_w:
        assert pilot.advised == free


def test_the_request_with_the_least_room_decides() -> None:
    model = fitted(BOARD).model
    knobs = SimulatedKnobs(domains=model.board.domains)
    made = {mode: controller_for("lowest-meeting", model, home=Path("/nowhere")) for mode in MODES}
    pilot = Pilot(model=model, controllers=made, knobs=knobs, clock_s=lambda: 0.0)

    def one(tpot_ms: float) -> Active:
        return Active(
            prompt_tokens=20, max_tokens=90, ttft_ms=None, tpot_ms=tpot_ms, budget_w=None,
            mode="balanced", came_s=0.0, adapters=0, cloud=False, first_s=0.0, drawn=1,
        )  # fmt: skip

    fast_ms = float(model.decode_ms(21)[model.fastest])
    calm, pressed = one(9 * fast_ms), one(1.1 * fast_ms)
    told: dict[str, Any] = {"temperature_c": None, "battery": None, "mean_tokens": 0.0}
    pilot.decide([calm], **told)
    slow = pilot.advised["cpu"]
    pilot.decide([calm, pressed], **told)
    assert pilot.advised["cpu"] > slow
    pilot.decide([pressed, calm], **told)
    both = pilot.advised["cpu"]
    pilot.decide([pressed], **told)
    assert pilot.advised["cpu"] == both


def test_the_learned_controller_learns_times_and_measured_watts() -> None:
    with world(controller="learned") as w:
        assert w.pilot is not None
        learned = w.pilot._controllers["balanced"]
        assert isinstance(learned, Learned)
        model = fitted(BOARD).model
        slow_ms = 3 * float(model.decode_ms(30).max())
        before = learned.costs.ms("decode", prompt_tokens=20, done=10)
        one = w.begin(sampling=Sampling(max_tokens=200))
        now_s = 0.0
        w.listener.on_step(step("prefill", tokens=20, ms=50))
        for _ in range(60):
            one.drawn()
            w.listener.on_step(step(ms=slow_ms))
            now_s += slow_ms / 1000
            w.at(now_s)
        after = learned.costs.ms("decode", prompt_tokens=20, done=10)
        assert (after > 1.2 * before).all()
        here = model.index_of(w.knobs.read())
        assert learned.costs.watts("decode")[here] == pytest.approx(2.0, rel=0.15)


def test_a_prompt_among_answers_does_not_shorten_their_tokens() -> None:
    with world(controller="learned") as w:
        assert w.pilot is not None
        seen: list[Any] = []
        w.pilot._controllers["balanced"].seen = seen.append  # type: ignore[method-assign]
        one = w.begin()
        w.at(1.0)
        w.listener.on_step(step("prefill", tokens=20, ms=1000.0))
        one.drawn()
        assert w.listener.settle()
        for n in range(7):
            w.at(1.1 + n / 10)
            w.listener.on_step(step(ms=100.0))
            if n == 3:
                w.listener.on_step(step("prefill", tokens=9, ms=50.0))
            one.drawn()
        assert w.listener.settle()
        prompt, tokens = seen
        assert (prompt.phase, prompt.energy_j) == ("prefill", pytest.approx(2.0))
        assert (tokens.phase, tokens.tokens, tokens.duration_ms) == ("decode", 7, 700.0)
        assert tokens.energy_j is None  # the stretch had both


@pytest.mark.parametrize(("fed", "learned"), [(1, False), (9, False), (10, True), (20, True)])
def test_a_cached_prompt_teaches_nothing_of_a_whole_one(fed: int, learned: bool) -> None:
    with world(controller="learned") as w:
        assert w.pilot is not None
        seen: list[Any] = []
        w.pilot._controllers["balanced"].seen = seen.append  # type: ignore[method-assign]
        one = w.begin(prompt_tokens=20)
        w.at(1.0)
        w.listener.on_step(step("prefill", tokens=fed, ms=100.0))
        one.drawn()
        assert w.listener.settle()
        assert [s.duration_ms for s in seen] == ([100.0 * 20 / fed] if learned else [])


def test_knobs_that_refuse_at_the_start_leave_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy, real = cpu_policy(tmp_path), Path.write_text

    def write(path: Path, text: str, *args: Any, **kw: Any) -> int:
        if path.parent == policy and text not in ("600000", "1500000"):
            raise OSError(22, "Invalid argument")
        return real(path, text, *args, **kw)

    monkeypatch.setattr(Path, "write_text", write)
    config = PowerConfig(knobs="cpufreq", controller="powersave", board=BOARD)
    with open_power(config, home=tmp_path, has_cloud=False, root=tmp_path) as power:
        assert power.info["controller"] == "powersave"
    assert "a change of clocks is assumed: " in caplog.text and "Invalid argument" in caplog.text


def test_an_unknown_energy_teaches_no_watts() -> None:
    with world(controller="learned", label="unknown") as w:
        assert w.pilot is not None
        learned = w.pilot._controllers["balanced"]
        assert isinstance(learned, Learned)
        watts = learned.costs.watts("decode")
        one = w.begin()
        for _ in range(20):
            one.drawn()
            w.listener.on_step(step(ms=50))
        assert w.listener.settle() and (learned.costs.watts("decode") == watts).all()


def test_modes_trade_speed_for_energy() -> None:
    chosen = {}
    for mode in MODES:
        config = PowerConfig(dvfs_mode=mode)
        with world(config, controller="lowest-meeting") as w:
            w.begin(power=PowerWish())
            assert w.listener.settle()
            chosen[mode] = w.knobs.read()["cpu"]
    assert chosen["saver"] <= chosen["balanced"]
    with world(controller="lowest-meeting") as w:
        w.begin(power=PowerWish(dvfs_mode="saver"))
        assert w.listener.settle() and w.knobs.read()["cpu"] == chosen["saver"]


def test_the_length_is_guessed_from_the_distributions() -> None:
    lengths = Lengths(model=shipped_length_model(), eos_ids=(1, 2))
    with world(controller="performance", lengths=lengths) as w:
        one = w.begin(sampling=Sampling(max_tokens=50))
        probs_V = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
        with np.errstate(divide="ignore"):
            one.log_probs(np.log(probs_V))
        assert w.listener.settle()
        heard = w.listener._active[0].predictor
        assert heard is not None
        assert heard._entropy[-1] == pytest.approx(1.75 * np.log(2))
        assert heard._end[-1] == pytest.approx(np.log10(0.375))
        assert w.figures()["power_failures_total"] == 0


def test_e17_clocks_are_held_while_the_part_runs_and_put_back(tmp_path: Path) -> None:
    policy = cpu_policy(tmp_path)
    write_tree(
        tmp_path,
        {
            "sys/class/power_supply/BAT0/type": "Battery",
            "sys/class/power_supply/BAT0/status": "Discharging",
            "sys/class/power_supply/BAT0/capacity": 42,
            "sys/class/thermal/thermal_zone0/type": "soc",
            "sys/class/thermal/thermal_zone0/temp": 51_500,
        },
    )
    config = PowerConfig(knobs="cpufreq", controller="performance", meter="rapl")
    with open_power(config, home=tmp_path, has_cloud=False, root=tmp_path) as power:
        assert holder(tmp_path / "power") is not None
        with (
            pytest.raises(Busy, match="the clocks are held by process"),
            open_power(config, home=tmp_path, has_cloud=False, root=tmp_path),
        ):
            raise AssertionError("two holders")
        one = power.listener.watch(
            Request(id="r", prompt="x"), prompt_tokens=3, adapters=0, came_s=0.0
        )
        assert power.listener.settle()
        assert (policy / "scaling_min_freq").read_text() == "1500000"
        one.ended()
        assert power.listener.settle() and power.listener.charge == 0.42
        told = {(r.name, *r.labels.values()): r.value for r in power.listener.readings()}
        assert told["power_temperature_celsius", "soc"] == 51.5
        assert told["power_battery_charge",] == 0.42
        # files that never follow count as 50 ms; the rough board would have said 1
        assert told["power_switch_milliseconds", "measured"] == pytest.approx(50, abs=25)
        assert power.info["label"] == "unknown" and power.info["board"] == "generic"
    assert (policy / "scaling_min_freq").read_text().strip() == "600000"
    assert holder(tmp_path / "power") is None


HOLDER = """
import sys, time
from pathlib import Path
from floe.core.sections import PowerConfig
from floe.core.request import Request
from floe.power.build import open_power
root = Path(sys.argv[1])
config = PowerConfig(knobs="cpufreq", controller="performance", meter="none")
with open_power(config, home=root, has_cloud=False, root=root) as power:
    power.listener.watch(Request(id="r", prompt="x"), prompt_tokens=3, adapters=0, came_s=0.0)
    power.listener.settle()
    print("held", flush=True)
    while True:
        time.sleep(60)
"""


def test_e17_sigterm_puts_back_what_the_thread_has_set(tmp_path: Path) -> None:
    policy = cpu_policy(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            assert (policy / "scaling_min_freq").read_text() == "1500000"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert (policy / "scaling_min_freq").read_text().strip() == "600000"


SERVER = """
import sys
from pathlib import Path
from starlette.applications import Starlette
from floe.cli.web import listen, run_app
from floe.core.sections import PowerConfig
from floe.core.request import Request
from floe.power.build import open_power
root = Path(sys.argv[1])
config = PowerConfig(knobs="cpufreq", controller="performance", meter="none")
with open_power(config, home=root, has_cloud=False, root=root) as power:
    def started():
        power.listener.watch(Request(id="r", prompt="x"), prompt_tokens=3, adapters=0, came_s=0.0)
        power.listener.settle()
        print("held", flush=True)
    run_app(Starlette(), listen("127.0.0.1", 0), started=started)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_e17_a_server_that_is_told_to_stop_puts_clocks_back(tmp_path: Path, number: int) -> None:
    """Signals go to uvicorn first, which ends its loop and passes them on."""
    policy = cpu_policy(tmp_path)
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            assert (policy / "scaling_min_freq").read_text() == "1500000"
            process.send_signal(number)
            process.wait(timeout=30)
        finally:
            process.kill()
    assert (policy / "scaling_min_freq").read_text().strip() == "600000"
    assert not (tmp_path / "power/lease.json").exists()


def test_noop_reads_clocks_gives_advice_and_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = cpu_policy(tmp_path)
    before = {p: p.read_text() for p in policy.iterdir()}
    config = PowerConfig(controller="performance", meter="none")
    with open_power(config, home=tmp_path, has_cloud=False, root=tmp_path) as power:
        power.listener.watch(Request(id="r", prompt="x"), prompt_tokens=3, adapters=0, came_s=0.0)
        assert power.listener.settle()
        told = {r.name: r.value for r in power.listener.readings()}
    assert (told["power_clock_mhz"], told["power_advised_mhz"]) == (1200, 1500)
    assert told["power_advice_only"] == 1
    told_by = {r.name: r.labels for r in power.listener.readings()}
    assert told_by["power_switch_milliseconds"] == {"label": "modelled"}  # nobody tried
    assert "clocks are not set, only advised: power.knobs is noop" in caplog.text
    assert {p: p.read_text() for p in policy.iterdir()} == before
    with open_power(config, home=tmp_path, has_cloud=False, root=tmp_path / "bare") as power:
        assert power.info["controller"] == "off"
    assert "power.controller has nothing to do: this machine tells of no clocks" in caplog.text


def test_a_board_or_network_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    for config, message in (
        (PowerConfig(controller="learned", board="orin"), "no board 'orin'; known: orin-nano"),
        (PowerConfig(controller="dqn", board="odroid-xu3"), "no Q network was trained for the"),
    ):
        with (
            pytest.raises(BadConfig, match=message),
            open_power(config, home=tmp_path, has_cloud=False, root=tmp_path),
        ):
            raise AssertionError("it started")
    own_policy(tmp_path).parent.mkdir(exist_ok=True)
    own_policy(tmp_path).write_text("{}")
    with pytest.raises(BadConfig, match=r"policy\.json is no power policy: its version is not"):
        controller_for("learned", fitted(BOARD).model, home=tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.lists(st.integers(50, 5000), min_size=1, max_size=20, unique=True),
        min_size=1,
        max_size=3,
    ),
    continuous=st.booleans(),
)
def test_a_rough_board_is_sound_for_any_clocks(steps: list[list[int]], continuous: bool) -> None:
    domains = [
        Domain(name=name, steps_mhz=tuple(sorted(s)), is_continuous=continuous)
        for name, s in zip(("cpu", "gpu", "emc"), steps, strict=False)
    ]
    model = generic(domains)
    assert model.n_settings <= MOST_STEPS ** len(domains)
    for domain, column in zip(domains, model.settings_SD.T, strict=True):
        ends = (domain.steps_mhz[0], domain.steps_mhz[-1])
        assert (column.min(), column.max()) == pytest.approx(ends)
    top = model.clocks(model.fastest)
    assert top == pytest.approx({d.name: d.steps_mhz[-1] for d in domains})
    for table in (model.prefill_ms(9), model.decode_ms(9), model.decode_w_S, model.idle_w_S):
        assert np.isfinite(table).all() and (table > 0).all()
    assert model.decode_w_S.argmax() == model.fastest


def test_temperatures_are_found_by_name_and_absurd_ones_left_out(tmp_path: Path) -> None:
    zones = "sys/class/thermal/thermal_zone"
    chip = "sys/class/hwmon/hwmon0/"
    write_tree(
        tmp_path,
        {
            f"{zones}0/type": "cpu-thermal", f"{zones}0/temp": 48_250,
            f"{zones}1/type": "cv-thermal", f"{zones}1/temp": -256_000,
            f"{zones}2/type": "cpu-thermal", f"{zones}2/temp": 50_000,
            f"{zones}3/type": "odd", f"{zones}3/temp": "n/a",
            f"{chip}name": "k10temp", f"{chip}temp1_label": "Tctl", f"{chip}temp1_input": 61_000,
        },
    )  # fmt: skip
    assert temperatures(tmp_path) == {"cpu-thermal": 50.0, "k10temp Tctl": 61.0}
    told = {s.name: s for s in thermal_sensors(tmp_path)}
    assert not told["odd"].usable and told["odd"].reason == "it gives no temperature now"
    assert thermal_sensors(tmp_path / "none")[0].reason == "no thermal zone there"


def test_the_engine_tells_every_turn(tmp_path: Path) -> None:
    engine = LlamaCppEngine(make_tiny_model(tmp_path).gguf, threads=1, context_tokens=256)
    heard: list[StepTiming] = []
    try:
        engine.hear_steps(heard.append)
        session = engine.session().result()
        session.feed([1, 2, 3, 4])
        session.feed([5])
        session.feed([6, 7], every=True)
        engine.hear_steps(unheard)
        session.feed([8])
        session.close()
    finally:
        engine.close()
    assert [(s.phase, s.tokens, s.sessions, s.adapters) for s in heard] == [
        ("prefill", 4, 1, 0), ("decode", 1, 1, 0), ("decode", 2, 1, 0),
    ]  # fmt: skip
    assert all(s.duration_ms > 0 for s in heard)


def test_nobody_need_listen() -> None:
    told = unwatched(Request(id="r", prompt="x"), prompt_tokens=1, adapters=0, came_s=0.0)
    assert isinstance(told, Unwatched)
    told.log_probs(None)
    told.drawn()
    told.ended()
    unheard(step())
    meter = RailMeter(name="none", rails=(), counted=(), start=False)
    listener = Listener(config=PowerConfig(), meter=meter, knobs=NoKnobs(), sensors=Sensors())
    assert listener.settle() and listener.mean_tokens == 0
    listener.close()
    listener.close()
    assert all(r.value == 0 for r in Books().readings())
