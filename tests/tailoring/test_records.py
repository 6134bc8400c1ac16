"""Searches that are killed, resumed and run side by side."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tailoring_worlds import World

from floe.core.errors import BadPlan, Busy
from floe.tailoring.base import Cost, Trial
from floe.tailoring.plan import LayerPlan, Plan
from floe.tailoring.records import Records, trial_from_json, trial_to_json
from floe.tailoring.run import run_search
from floe.tailoring.search.make import make_search

LABEL = {"search": "evolutionary", "seed": 4}
CHILD = """
import sys, time
from tailoring_worlds import World
from floe.tailoring.records import Records
from floe.tailoring.run import run_search
from floe.tailoring.search.make import make_search
from pathlib import Path
world = World()
def hang(step):
    if step.done == 5:
        print("five", flush=True)
        sys.stdin.readline()
with Records(Path(sys.argv[1]), label={"search": "evolutionary", "seed": 4}) as records:
    run_search(make_search("evolutionary", space=world.space, seed=4), space=world.space,
               quality=world, n_evaluations=12, records=records, on_step=hang)
"""


def run(path: Path | None, n: int = 12) -> tuple[World, object]:
    world = World()
    search = make_search("evolutionary", space=world.space, seed=4)
    if path is None:
        return world, run_search(search, space=world.space, quality=world, n_evaluations=n)
    with Records(path, label=LABEL) as records:
        found = run_search(
            search, space=world.space, quality=world, n_evaluations=n, records=records
        )
    return world, found


def test_a_killed_search_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    folders = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": folders},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"five\n"
    with pytest.raises(Busy, match="another search writes"):
        Records(path, label=LABEL)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with path.open("ab") as file:
        file.write(b'{"perplexity": 12.')  # what a kill in the middle of a write leaves
    world, found = run(path)
    assert found.n_replayed == 5
    assert len(world.judged) == 7
    assert found.trials == run(None)[1].trials
    assert len(path.read_text().splitlines()) == 13


def test_a_finished_search_is_not_run_again_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    run(path)
    assert len(run(path)[0].judged) == 0
    world, found = run(path, n=15)
    assert len(world.judged) == 3
    assert found.trials == run(None, n=15)[1].trials


def test_records_of_another_search_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    run(path)
    with pytest.raises(BadPlan, match=r"of another search \(seed differ\)"):
        Records(path, label={**LABEL, "seed": 5})
    other = tmp_path / "text"
    other.write_text("no records\n")
    with pytest.raises(BadPlan, match="holds no trials of a search"):
        Records(other, label=LABEL)


def test_each_trial_is_a_line_that_other_tools_can_read(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    run(path)
    head, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["label"] == LABEL
    assert {"perplexity", "score", "cost", "plan"} == set(rest[0])


def test_trials_survive_json() -> None:
    plan = Plan(
        base_digest="d", layers=(LayerPlan(n_kv_heads=1, q_per_kv=2, n_ffn=32),),
        quants={"ffn": "Q8_0"}, importance="flap", made_by="random",
    )  # fmt: skip
    cost = Cost(prefill_ms=1.5, decode_ms=0.1, memory_bytes=7, energy_mj=None)
    for found in (12.345678901234567, math.inf):
        trial = Trial(plan=plan, perplexity=found, cost=cost, score=0.1)
        assert trial_from_json(json.loads(json.dumps(trial_to_json(trial)))) == trial
