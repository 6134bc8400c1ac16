"""Hears of steps and answers without ever holding them up; a thread of its own keeps the books,
chooses clocks and sets them.

Whoever speaks puts one item into a queue and goes on. When the thread is behind by `MOST_ITEMS`,
what only informs (steps, tokens, distributions) is dropped and counted; starts and ends are not,
since they come in pairs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from floe.core.request import Request
from floe.core.sections import PowerConfig
from floe.core.timing import RequestWatch, StepTiming
from floe.power.base import Knobs, Meter, Phase, Window
from floe.power.books import LABELS, Books, Reading
from floe.power.length import LengthModel, LengthPredictor
from floe.power.pilot import Active, Pilot
from floe.power.simulate import BLOCK_TOKENS
from floe.power.sparing import Sparing, least_budget_w

_log = logging.getLogger(__name__)
MOST_ITEMS = 4096
MOST_DISTRIBUTIONS = 64
"""A distribution is V floats, up to a megabyte: so many items may lie before it."""
_LEAST = -80.0
REFRESH_S = 1.0
"""How often sensors are read, at work or not."""


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """What is read beside energy: degrees by sensor, and the battery's charge, 0 to 1."""

    temperatures: Callable[[], dict[str, float]] = dict
    charge: Callable[[], float | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What tells how many tokens are left: a model and the tokens that end an answer."""

    model: LengthModel
    eos_ids: Sequence[int]


@dataclass(frozen=True)
class _Said:
    """One item: `what` happened to whom, when, and with what."""

    what: str
    who: Active | None
    at_s: float
    value: Any = None


class Listener:
    """`watch` and `on_step` are given to the answer and the engine; `readings` to /metrics.

    Without a `pilot` it only measures and counts. `spare` learns what requests took.
    """

    def __init__(
        self,
        *,
        config: PowerConfig,
        meter: Meter,
        knobs: Knobs,
        pilot: Pilot | None = None,
        spare: Sparing | None = None,
        sensors: Sensors | None = None,
        lengths: Lengths | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        self._config, self._meter, self._knobs = config, meter, knobs
        self._pilot, self._spare, self._lengths = pilot, spare, lengths
        self._sensors, self._clock_s = sensors or Sensors(), clock_s
        self._queue: queue.SimpleQueue[_Said | threading.Event | None] = queue.SimpleQueue()
        self._books = Books()
        self._active: list[Active] = []
        self._done: dict[
            Phase, tuple[int, float]
        ] = {}  # tokens fed and ms, since the last settling
        self._mark = meter.begin()
        self.dropped = self.failures = 0
        self._read_at_s = 0.0
        self._degrees: dict[str, float] = {}
        self._clocks: dict[str, float] = {}
        self._charge: float | None = None
        self._published: tuple[Reading, ...] = ()
        self._refresh()
        self._thread: threading.Thread | None = None
        if start:
            self._thread = threading.Thread(target=self._run, name="floe-power", daemon=True)
            self._thread.start()

    # --- called from any thread: never waits ---

    def on_step(self, step: StepTiming) -> None:
        """A turn of the engine."""
        self._inform(_Said("step", None, step.ended_s, step))

    def watch(
        self, request: Request, *, prompt_tokens: int, adapters: int, came_s: float
    ) -> RequestWatch:
        """A request whose prompt is about to be read."""
        wish, config = request.power, self._config
        predictor = None
        if self._lengths is not None and self._pilot is not None:
            predictor = LengthPredictor(
                self._lengths.model, prompt=request.topic(), prompt_tokens=prompt_tokens
            )
        one = Active(
            prompt_tokens=prompt_tokens,
            max_tokens=request.sampling.max_tokens,
            ttft_ms=config.ttft_slo_ms or None,
            tpot_ms=wish.latency_slo_ms or config.tpot_slo_ms or None,
            budget_w=least_budget_w(wish.power_budget_w, config.power_budget_w),
            mode=wish.dvfs_mode or config.dvfs_mode,
            came_s=came_s,
            adapters=adapters,
            cloud=request.cloud,
            predictor=predictor,
        )
        self._queue.put(_Said("begun", one, self._clock_s()))
        return _Heard(self, one)

    def drawn(self, who: Active) -> None:
        """Another token of an answer."""
        self._inform(_Said("drawn", who, self._clock_s()))

    def distribution(self, who: Active, log_probs_V: Any) -> None:
        """What the next token of an answer is drawn from."""
        said = _Said("distribution", who, self._clock_s(), log_probs_V)
        self._inform(said, most=MOST_DISTRIBUTIONS)

    def end(self, who: Active) -> None:
        """An answer is over."""
        self._queue.put(_Said("ended", who, self._clock_s()))

    def readings(self) -> tuple[Reading, ...]:
        """Figures as they were a moment ago."""
        lost = (
            Reading(name="power_dropped_steps_total", value=self.dropped),
            Reading(name="power_failures_total", value=self.failures),
        )
        return (*self._published, *lost)

    @property
    def charge(self) -> float | None:
        """The battery's, as it was last read; None on mains."""
        return self._charge

    @property
    def mean_tokens(self) -> float:
        """Tokens of a usual answer; 0 before the first."""
        return self._books.mean_tokens

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything said so far is taken in; False when that took too long."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Take in what was said, and end the thread; the meter and the knobs are the caller's."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _inform(self, said: _Said, *, most: int = MOST_ITEMS) -> None:
        if self._queue.qsize() >= most:
            self.dropped += 1
        else:
            self._queue.put(said)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=REFRESH_S)
            except queue.Empty:
                self._guarded(self._refresh)
                continue
            if self._clock_s() - self._read_at_s >= REFRESH_S:  # a busy queue is never empty
                self._guarded(self._refresh)
            if item is None:
                return
            if isinstance(item, threading.Event):
                self._guarded(self._refresh)
                item.set()
            else:
                self._guarded(self._take, item)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Power is never worth an answer: what fails is counted, and said once by class."""
        try:
            work(*arguments)
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning("power: %s; serving goes on", type(error).__name__)

    def _take(self, said: _Said) -> None:
        if said.what == "step":
            self._step(said.value)
            return
        if said.who is None:
            return
        if said.what == "begun":
            self._settle()
            self._active.append(said.who)
            self._decide()
        elif said.what == "drawn":
            self._drawn(said.who, said.at_s)
        elif said.what == "distribution":
            self._distribution(said.who, said.value)
        elif said.what == "ended":
            self._ended(said.who)

    def _step(self, step: StepTiming) -> None:
        self._books.step(step.phase, step.duration_ms)
        fed, busy_ms = self._done.get(step.phase, (0, 0.0))
        self._done[step.phase] = (fed + step.tokens, busy_ms + step.duration_ms)

    def _drawn(self, one: Active, at_s: float) -> None:
        one.drawn += 1
        one.last_s = at_s
        if one.first_s is None:
            self._settle()  # before the phase changes: what was used until here was the prompt's
            one.first_s = at_s
            if one.ttft_ms is not None:
                self._books.goal("ttft", missed=1000 * (at_s - one.came_s) > one.ttft_ms)
            self._decide()
        elif one.drawn % BLOCK_TOKENS == 0:
            self._settle()
            self._decide()

    def _distribution(self, one: Active, log_probs_V: Any) -> None:
        if one.predictor is None or self._lengths is None:
            return
        finite_V = np.maximum(log_probs_V, _LEAST)  # 0 * -inf is no number
        probs_V = np.exp(finite_V)
        entropy = -float(probs_V @ finite_V)
        one.predictor.seen(entropy, float(probs_V[list(self._lengths.eos_ids)].sum()))

    def _ended(self, one: Active) -> None:
        if one not in self._active:
            return
        try:
            self._settle()
        finally:
            self._active.remove(one)  # or clocks would be chosen for it for ever
        mean_ms = one.mean_ms()
        if mean_ms is not None and one.tpot_ms is not None:
            self._books.goal("tpot", missed=mean_ms > one.tpot_ms)
        self._books.request(one.spent, tokens=one.drawn)
        if self._spare is not None and mean_ms is not None:
            is_measured = one.spent.label == "measured" and one.spent.energy_j is not None
            energy_j = one.spent.energy_j if is_measured else None
            self._spare.learn(
                adapters=one.adapters,
                cloud=one.cloud,
                latency_ms=mean_ms,
                energy_j=None if energy_j is None else energy_j / max(one.drawn, 1),
            )
        self._decide()

    def _settle(self) -> Window:
        """Close the stretch that ends now: its joules in equal parts to all who were at work."""
        window = self._meter.end(self._mark)
        self._mark = self._meter.begin()
        self._books.window(window, busy=bool(self._active))
        for one in self._active:
            part = None if window.energy_j is None else window.energy_j / len(self._active)
            one.spent.add(part, window.label)
        if self._pilot is not None:
            # Joules of a stretch with prompts and answers in it belong to neither alone.
            alone = len(self._done) <= 1
            taught = window if alone else replace(window, energy_j=None, label="unknown")
            for phase, (fed, busy_ms) in self._done.items():
                self._pilot.learn(phase=phase, fed=fed, busy_ms=busy_ms, window=taught)
        self._done = {}
        return window

    def _decide(self) -> None:
        if self._pilot is not None:
            self._pilot.decide(
                self._active,
                temperature_c=max(self._degrees.values(), default=None),
                battery=self._charge,
                mean_tokens=self._books.mean_tokens,
            )
        self._publish()

    def _refresh(self) -> None:
        """Read the sensors."""
        self._read_at_s = self._clock_s()
        if not self._active:
            self._settle()
        self._degrees = self._sensors.temperatures()
        self._clocks = self._knobs.read()
        self._charge = self._sensors.charge()
        self._publish()

    def _publish(self) -> None:
        pilot = self._pilot
        out = self._books.readings()
        label = self._meter.label
        out += [
            Reading(name="power_energy_label", value=float(label == known), labels={"label": known})
            for known in LABELS
        ]
        out += [
            Reading(name="power_clock_mhz", value=mhz, labels={"domain": name})
            for name, mhz in self._clocks.items()
        ]
        out += [
            Reading(name="power_temperature_celsius", value=c, labels={"sensor": name})
            for name, c in self._degrees.items()
        ]
        if self._charge is not None:
            out.append(Reading(name="power_battery_charge", value=self._charge))
        if pilot is not None:
            out += [
                Reading(name="power_decisions_total", value=pilot.decisions),
                Reading(name="power_switches_total", value=pilot.switches),
                Reading(name="power_decision_seconds", value=pilot.decision_s),
                Reading(
                    name="power_switch_milliseconds",
                    value=pilot.switch_ms,
                    labels={"label": pilot.switch_label},
                ),
                Reading(name="power_advice_only", value=float(bool(pilot.fault))),
            ]
            out += [
                Reading(name="power_advised_mhz", value=mhz, labels={"domain": name})
                for name, mhz in pilot.advised.items()
            ]
        if self._spare is not None:
            out += [
                Reading(name="power_cut_requests_total", value=n, labels={"what": what})
                for what, n in (
                    ("adapters", self._spare.cut_adapters), ("cloud", self._spare.cut_cloud),
                )
            ]  # fmt: skip
        self._published = tuple(out)


class _Heard:
    """One answer's side of the listener."""

    def __init__(self, listener: Listener, one: Active) -> None:
        self._listener, self._one, self._is_over = listener, one, False

    def log_probs(self, log_probs_V: Any) -> None:
        """A distribution, for the guess of how long the answer gets."""
        if self._one.predictor is not None:
            self._listener.distribution(self._one, log_probs_V)

    def drawn(self) -> None:
        """Another token."""
        self._listener.drawn(self._one)

    def ended(self) -> None:
        """The end, once."""
        if not self._is_over:
            self._is_over = True
            self._listener.end(self._one)
