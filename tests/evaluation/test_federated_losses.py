"""The experiment of clusters and losses: its data, its devices, and a run on a random model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="an extra: pip install 'floe[train]'")
pytest.importorskip("scipy", reason="an extra: pip install 'floe[fed]'")

from floe.evaluation import federated_losses  # noqa: E402
from floe.evaluation.federated_losses import QUICK, Experiment, Plan, adjusted_rand  # noqa: E402
from floe.evaluation.federated_tasks import MEASURED, OTHERS, clients, tasks  # noqa: E402
from floe.federated.on_torch.base_model import BaseModel, load_base  # noqa: E402
from floe.testing.tiny_model import make_tiny_model  # noqa: E402

TINY = replace(
    QUICK, names=MEASURED[:2], layers=None, rounds=2, steps=2, held_out=4, examples=(8, 12),
    ranks=(2, 4),
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return load_base(make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3).folder)


def test_the_sample_has_24_tasks_and_no_input_on_both_sides() -> None:
    assert len(tasks()) == 24
    for task in tasks().values():
        assert len(task.held_out) >= 15, task.name
        assert not {e.turns for e in task.train} & {e.turns for e in task.held_out}, task.name
    assert not set(MEASURED) & set(OTHERS)
    assert {*MEASURED, *OTHERS} <= set(tasks())


def test_devices_share_no_example_and_are_mostly_of_one_task() -> None:
    plan = Plan()
    found = clients(
        plan.names, per_task=2, ranks=(4, 8), examples=(24, 48), mixed_share=0.1, seed=7
    )
    assert len(found) == 16
    assert [c.rank for c in found[:3]] == [4, 8, 4]
    seen = [e for c in found for e in c.train]
    assert len(seen) == len({id(e) for e in seen})
    for client in found:
        own = sum(e in tasks()[client.task].train for e in client.train)
        assert 24 <= len(client.train) <= 48
        assert own >= len(client.train) - client.mixed >= 0.85 * len(client.train)
    with pytest.raises(ValueError, match="too few examples for 9 devices"):
        clients(
            ["informal_to_formal"], per_task=9, ranks=(4,), examples=(8, 8), mixed_share=0, seed=0
        )


def slow_adjusted_rand(truth: Sequence[int], found: Sequence[int]) -> float:
    """By going through all pairs."""
    pairs = list(itertools.combinations(range(len(truth)), 2))
    a = [truth[i] == truth[j] for i, j in pairs]
    b = [found[i] == found[j] for i, j in pairs]
    both = sum(x and y for x, y in zip(a, b, strict=True))
    chance = sum(a) * sum(b) / len(pairs)
    most = (sum(a) + sum(b)) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12))
def test_adjusted_rand_against_all_pairs(labels: list[tuple[int, int]]) -> None:
    truth, found = [a for a, _ in labels], [b for _, b in labels]
    expected = slow_adjusted_rand(truth, found)
    assert adjusted_rand([*map(str, truth)], [*map(str, found)]) == pytest.approx(expected)


def test_adjusted_rand_of_the_same_groups_is_one() -> None:
    assert adjusted_rand(["a", "a", "b"], ["x", "x", "y"]) == 1.0


def test_a_run_reports_every_figure_and_does_shared_trainings_once(base: BaseModel) -> None:
    figures = Experiment(base=base, plan=TINY, say=lambda _: None).figures()
    for name in ("base", "clustered", "fedavg", "local", "oracle_groups"):
        assert figures[f"loss_{name}"] > 0.0
    assert figures["loss_fedavg"] != figures["loss_base"]
    assert (figures["clients"], figures["tasks"], figures["rounds"]) == (4, 2, 2)
    # Round 1 is one for all ways, so at most 1 + 4 rounds of 4 devices were trained.
    assert figures["trained_steps"] <= 5 * 4 * TINY.steps
    assert all(isinstance(v, (int, float, str, type(None))) for v in figures.values())


class Stop(Exception):
    """Raised from the messages: a run that is cut off."""


def test_a_stopped_run_goes_on_from_its_folder(base: BaseModel, tmp_path: Path) -> None:
    whole = Experiment(base=base, plan=TINY, say=lambda _: None).figures()

    def stop(text: str) -> None:
        if text.startswith("fedavg, round 1"):
            raise Stop

    with pytest.raises(Stop):
        Experiment(base=base, plan=TINY, say=stop, folder=tmp_path).figures()
    rest = Experiment(base=base, plan=TINY, say=lambda _: None, folder=tmp_path).figures()
    assert rest["trained_steps"] < whole["trained_steps"]
    losses = [k for k in whole if k.startswith("loss_")]
    assert {k: rest[k] for k in losses} == {k: whole[k] for k in losses}


def test_the_forms_are_the_documented_ones() -> None:
    assert federated_losses.FULL.layers is None
    assert len(federated_losses.FULL.names) * federated_losses.FULL.per_task >= 16
    assert QUICK.layers is not None
