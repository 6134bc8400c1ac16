"""The simulator beside a slow loop, and what queues, heat, load and switches do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.power.base import Board, ControlState, Domain, Goals, Step
from floe.power.boards.catalogue import fitted
from floe.power.boards.model import BoardModel, Thermal, grid
from floe.power.controllers.rules import rule
from floe.power.simulate import BLOCK_TOKENS, Run, simulate
from floe.power.workload import MOST_OUTPUT_TOKENS, MOST_PROMPT_TOKENS, Job, traces, workload

DOMAIN = Domain(name="gpu", steps_mhz=(1.0, 2.0, 3.0))


def board(switch_ms: float = 3.0, **thermal: float) -> BoardModel:
    ms_S = np.array([4.0, 2.0, 1.0])
    return BoardModel(
        board=Board(name="toy", domains=(DOMAIN,)),
        settings_SD=grid((DOMAIN,)),
        prefill_ms=lambda tokens: ms_S * tokens,
        decode_ms=lambda context: ms_S * (10 + context / 10),
        prefill_w_S=np.array([2.0, 5.0, 12.0]),
        decode_w_S=np.array([1.0, 3.0, 8.0]),
        idle_w_S=np.array([0.1, 0.2, 0.4]),
        switch_ms=switch_ms,
        thermal=Thermal(**thermal) if thermal else Thermal(resistance_c_per_w=0.1),
    )


def job(
    prompt: int = 20, output: int = 20, *, arrival_s: float | None = None, pause_s: float = 1.0,
    ttft_ms: float = 100.0, tpot_ms: float = 30.0,
) -> Job:  # fmt: skip
    return Job(
        pause_s=pause_s, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output,
        goals=Goals(ttft_ms=ttft_ms, tpot_ms=tpot_ms), service="x",
    )  # fmt: skip


@dataclass
class Script:
    """Settings in turn; remembers what it was asked and told."""

    settings: list[int]
    name = "script"

    def __post_init__(self) -> None:
        self.states: list[ControlState] = []
        self.steps: list[Step] = []
        self.begun: list[Goals] = []

    def begin(self, goals: Goals) -> None:
        self.begun.append(goals)

    def decide(self, state: ControlState) -> dict[str, float]:
        at = self.settings[len(self.states) % len(self.settings)]
        self.states.append(state)
        return {"gpu": DOMAIN.steps_mhz[at]}

    def seen(self, step: Step) -> None:
        self.steps.append(step)


def slow_twin(model: BoardModel, jobs: list[Job], script: list[int], load: float) -> list[float]:
    """Serving joules, idle joules, seconds, switches, by a plain loop over tokens."""
    now, at, turn, energy, idle, switches = 0.0, 2, 0, 0.0, 0.0, 0
    for one in jobs:
        came = now + one.pause_s if one.arrival_s is None else one.arrival_s
        if came > now:
            new = script[turn % len(script)]
            turn += 1
            switches += new != at
            at = new
            idle += float(model.idle_w_S[at]) * (came - now)
            now = came
        blocks = [("prefill", one.prompt_tokens)]
        left = one.output_tokens - 1
        while left > 0:
            blocks.append(("decode", min(BLOCK_TOKENS, left)))
            left -= BLOCK_TOKENS
        done = 1
        for phase, tokens in blocks:
            new = script[turn % len(script)]
            turn += 1
            lost = model.switch_ms / 1000 if new != at else 0.0
            switches += new != at
            at = new
            if phase == "prefill":
                seconds = float(model.prefill_ms(tokens)[at]) / 1000
                watts = float(model.prefill_w_S[at])
            else:
                seconds = tokens * float(model.decode_ms(one.prompt_tokens + done)[at]) / 1000
                watts = float(model.decode_w_S[at])
                done += tokens
            seconds = seconds / (1 - load) + lost
            energy += watts * seconds
            now += seconds
    return [energy, idle, now, switches]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.floats(0.0, 2.0), st.booleans()),
        min_size=1, max_size=5,
    ),
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_energy_and_time_add_up_as_in_a_plain_loop(
    given_jobs: list[tuple[int, int, float, bool]], script: list[int], load: float
) -> None:
    model, at_s = board(), 0.0
    jobs = []
    for prompt, output, gap, queued in given_jobs:
        at_s += gap
        jobs.append(job(prompt, output, pause_s=gap, arrival_s=at_s if queued else None))
    run = simulate(model, Script(script), jobs, load=lambda _t: load, keep_timeline=True)
    energy, idle, seconds, switches = slow_twin(model, jobs, script, load)
    assert run.energy_j == pytest.approx(energy) and run.idle_j == pytest.approx(idle)
    assert run.switches == switches and len(run.served) == len(jobs)
    assert sum(m.seconds for m in run.timeline) == pytest.approx(seconds)
    total = sum(m.power_w * m.seconds for m in run.timeline)
    assert total == pytest.approx(energy + idle)
    assert sum(s.energy_j for s in run.served) == pytest.approx(energy)


def test_a_switch_costs_time_at_the_new_power_and_is_not_in_the_step() -> None:
    script = Script([2, 0])
    run = simulate(board(switch_ms=50.0), script, [job(20, 1)])
    assert run.switches == 1
    assert run.served[0].ttft_ms == pytest.approx(4 * 20 + 50)
    assert run.energy_j == pytest.approx(2.0 * (80 + 50) / 1000)
    assert script.steps[0].duration_ms == pytest.approx(80.0)
    assert script.steps[0].label == "modelled"


def test_a_queue_makes_the_next_wait_and_a_conversation_does_not() -> None:
    model, slow = board(), Script([0])
    queue = [job(20, 20, arrival_s=0.01 * k) for k in range(4)]
    waited = simulate(model, slow, queue)
    firsts = [s.ttft_ms for s in waited.served]
    assert firsts == sorted(firsts) and firsts[-1] > 3 * firsts[0]
    assert [s.waiting for s in slow.states if s.phase == "prefill"] == [0, 2, 1, 0]
    talk = simulate(model, Script([0]), [replace(j, arrival_s=None) for j in queue])
    assert len({round(s.ttft_ms, 6) for s in talk.served}) == 1
    assert waited.violation_ttft == 0.75 and talk.violation_ttft == 0.0


def test_goals_are_judged_on_the_first_token_and_the_mean_of_the_rest() -> None:
    model = board(switch_ms=0.0)

    def late(ttft: float, tpot: float) -> tuple[bool, bool]:
        one = simulate(model, Script([2]), [job(20, 9, ttft_ms=ttft, tpot_ms=tpot)]).served[0]
        return one.late_first, one.late_tokens

    assert late(20.0, 12.1) == (False, False)
    assert late(19.9, 12.0) == (True, True)
    only_first = simulate(model, Script([2]), [job(20, 1, tpot_ms=1e-6)]).served[0]
    assert only_first.tpot_ms == 0.0 and not only_first.late_tokens


def test_slack_is_shared_by_a_whole_block_however_few_tokens_are_guessed() -> None:
    script = Script([2])
    simulate(board(0.0), script, [job(20, 60, tpot_ms=30.0)], guess=lambda _job, _done: 0.2)
    decoding = [s for s in script.states if s.phase == "decode"]
    assert all(s.tokens_left == 1.0 for s in decoding)
    spent = script.steps[1].duration_ms
    wanted = (30.0 * (8 + BLOCK_TOKENS) - spent) / BLOCK_TOKENS
    assert decoding[1].tpot_allowed_ms == pytest.approx(wanted)


def test_heat_throttles_and_cooling_ends_it() -> None:
    hot = board(0.0, resistance_c_per_w=12.0, time_constant_s=0.5)
    run = simulate(hot, Script([2]), [job(100, 200) for _ in range(3)], keep_timeline=True)
    assert run.throttled > 0
    over = [a.temperature_c > hot.thermal.limit_c for a in run.timeline]
    for was_hot, after in zip(over, run.timeline[1:], strict=False):
        assert after.setting == (0 if was_hot else 2)


def test_another_program_slows_every_step() -> None:
    alone = simulate(board(), Script([2]), [job()])
    beside = simulate(board(), Script([2]), [job()], load=lambda _t: 0.5)
    assert beside.served[0].ttft_ms == pytest.approx(2 * alone.served[0].ttft_ms)
    assert beside.energy_j == pytest.approx(2 * alone.energy_j)
    full = simulate(board(), Script([2]), [job()], load=lambda _t: 1.0)
    assert np.isfinite(full.energy_j)  # a program cannot take everything


def test_every_request_is_announced_once_and_in_order() -> None:
    script = Script([1])
    jobs = [job(5 + k, 1 + 9 * k, ttft_ms=50.0 + k) for k in range(4)]
    simulate(board(), script, jobs, battery=0.4)
    assert [g.ttft_ms for g in script.begun] == [50.0, 51.0, 52.0, 53.0]
    assert {s.battery for s in script.states} == {0.4}
    assert sum(s.tokens for s in script.steps if s.phase == "decode") == sum(
        9 * k for k in range(4)
    )


def test_nothing_to_serve_is_an_empty_run() -> None:
    run: Run = simulate(board(), Script([0]), [])
    assert run.served == () and run.energy_j == run.idle_j == 0.0


@pytest.mark.parametrize("name", ["orin-nano-super", "v100"])
def test_the_workload_is_drawn_by_seed_from_its_own_half(name: str) -> None:
    model = fitted(name).model
    jobs = workload(model, n=200, part="train", seed=1)
    assert jobs == workload(model, n=200, part="train", seed=1)
    assert jobs != workload(model, n=200, part="train", seed=2)
    assert {j.service for j in jobs} == {"chat", "code", "batch"}
    assert all(1 <= j.prompt_tokens <= MOST_PROMPT_TOKENS for j in jobs)
    assert all(2 <= j.output_tokens <= MOST_OUTPUT_TOKENS for j in jobs)
    for part in ("train", "test"):
        drawn = {
            (j.prompt_tokens, j.output_tokens)
            for j in workload(model, n=60, part=part, seed=3)
            if j.service == "code"
        }
        rows = traces()["code"]
        half = len(rows) // 2
        own = rows[:half] if part == "train" else rows[half:]
        known = {
            (min(max(p, 1), MOST_PROMPT_TOKENS), min(max(o, 2), MOST_OUTPUT_TOKENS)) for p, o in own
        }
        assert drawn <= known


def test_a_board_at_full_speed_is_busy_for_the_share_that_was_asked() -> None:
    model = fitted("odroid-xu3").model
    for queue in (False, True):
        jobs = workload(model, n=400, part="train", seed=4, utilisation=0.2, queue=queue)
        run = simulate(model, rule("performance", model), jobs, keep_timeline=True)
        busy = sum(m.seconds for m in run.timeline if m.phase != "idle")
        assert busy / sum(m.seconds for m in run.timeline) == pytest.approx(0.2, abs=0.03)
        assert run.violation_tpot == 0.0
        assert all((j.arrival_s is not None) == queue for j in jobs)
