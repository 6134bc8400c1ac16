"""The policy: under 1,000 numbers, kept whole, refused when damaged; and its training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from floe.core.errors import BadConfig
from floe.power.boards.catalogue import fitted
from floe.power.controllers.dqn import observation
from floe.power.controllers.learned import N_FEATURES, N_OUTPUTS, features
from floe.power.controllers.policy import Policy, blank, load, save, shipped
from floe.power.train import HIDDEN, erring, judge, scenarios, train
from floe.testing.controller_conformance import states


def some(seed: int = 0, outputs: int = N_OUTPUTS) -> Policy:
    made = blank(N_FEATURES, 5, outputs)
    return made.with_flat(np.random.default_rng(seed).normal(size=made.n_parameters))


def test_it_is_a_network_of_two_hidden_layers() -> None:
    policy, x = some(), np.linspace(-1, 1, N_FEATURES)
    first = [
        np.tanh(sum(x[i] * policy.in_FH[i, j] for i in range(N_FEATURES)) + policy.in_H[j])
        for j in range(5)
    ]
    second = [
        np.tanh(sum(first[i] * policy.mid_HH[i, j] for i in range(5)) + policy.mid_H[j])
        for j in range(5)
    ]
    out = [sum(second[i] * policy.out_HO[i, k] for i in range(5)) + policy.out_O[k] for k in (0, 1)]
    assert policy(x).tolist() == pytest.approx(out)
    assert blank(N_FEATURES, 5, 2)(x).tolist() == [0.0, 0.0]
    assert policy.with_flat(policy.flat()).flat().tolist() == policy.flat().tolist()


def test_the_shipped_ones_are_small_and_say_where_they_are_from() -> None:
    policy = shipped("policy", features=N_FEATURES, outputs=N_OUTPUTS)
    assert policy.n_parameters < 1000 and policy.card["note"]
    board = fitted("orin-nano-super").model
    values = shipped("dqn-orin-nano-super", features=N_FEATURES, outputs=board.n_settings)
    assert values.card["board"] == "orin-nano-super"


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save(some(), path)
    read = load(path, features=N_FEATURES, outputs=N_OUTPUTS)
    assert read.flat().tolist() == pytest.approx(some().flat().tolist(), abs=1e-6)


def damaged(body: dict[str, object], what: str) -> str:
    arrays = body["arrays"]
    assert isinstance(arrays, list)
    if what == "version":
        body["version"] = 7
    elif what == "shape":
        arrays[0] = arrays[0][:-1]
    elif what == "missing":
        arrays.pop()
    elif what == "nan":
        arrays[1][0] = float("nan")
    elif what == "words":
        arrays[1][0] = "wide"
    text = json.dumps(body)
    return {"cut": text[: len(text) // 2], "list": "[1]", "empty": ""}.get(what, text)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("version", "its version is not 1"),
        ("list", "its version is not 1"),
        ("shape", f"does not take {N_FEATURES} features to {N_OUTPUTS} outputs"),
        ("missing", f"does not take {N_FEATURES} features to {N_OUTPUTS} outputs"),
        ("nan", "numbers that are not finite"),
        ("words", "is no power policy"),
        ("cut", "is no power policy"),
        ("empty", "is no power policy"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, what: str, said: str) -> None:
    path = tmp_path / "policy.json"
    save(some(), path)
    path.write_text(damaged(json.loads(path.read_text()), what))
    with pytest.raises(BadConfig, match=said) as told:
        load(path, features=N_FEATURES, outputs=N_OUTPUTS)
    assert str(path) in str(told.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"cannot read the policy .*gone\.json: No such file"):
        load(tmp_path / "gone.json", features=N_FEATURES, outputs=N_OUTPUTS)


def test_features_stay_near_one_whatever_the_state() -> None:
    model = fitted("v100").model
    for state in states(model):
        for room in (-1e9, 0.0, 1.0, 1e9):
            made = features(state, room, model)
            assert made.shape == (N_FEATURES,) and np.isfinite(made).all()
            assert (np.abs(made) <= 3.0).all()
        if state.phase != "idle":
            assert np.isfinite(observation(state, model)).all()


def test_guesses_err_the_same_at_the_same_place_and_about_as_said() -> None:
    jobs = scenarios("train", seed=1, n_jobs=300, boards=["v100"])[0].jobs
    guess, same = erring(3, spread=0.5), erring(3, spread=0.5)
    errors = []
    for one in jobs:
        assert guess(one, 1) == same(one, 1) > 0
        errors.append(np.log(guess(one, 1) / (one.output_tokens - 1)))
    assert float(np.std(errors)) == pytest.approx(0.5, abs=0.12)


def test_training_is_repeatable_and_never_ends_worse_than_it_started() -> None:
    where = scenarios("train", seed=1, n_jobs=6, boards=["odroid-xu3"])[:2]
    said: list[int] = []
    first = train(where, generations=1, seed=5, say=lambda n, _judged: said.append(n))
    again = train(where, generations=1, seed=5)
    assert first.flat().tolist() == again.flat().tolist() and said == [0]
    start = judge(blank(N_FEATURES, HIDDEN, N_OUTPUTS), where)
    end = judge(first, where)
    assert end.energy + 10 * end.excess <= start.energy + 10 * start.excess + 1e-12
    assert first.card["generations"] == 1 and len(first.card["trained_on"]) == 2  # type: ignore[arg-type]
