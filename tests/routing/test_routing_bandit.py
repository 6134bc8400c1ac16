"""The bandit beside its slow twin; arms that come and go; what is refused."""

from __future__ import annotations

import math
import random
import threading

import numpy as np
import pytest
from bandit_twin import BanditTwin
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRequest
from floe.routing import bandit as module
from floe.routing.bandit import Bandit, Settings

ARMS = ("a", "b", "c", "d")


def context(rng: np.random.Generator, width: int) -> np.ndarray:
    return np.append(rng.standard_normal(width - 1) / math.sqrt(width), 1.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    width=st.integers(1, 9),
    n=st.integers(0, 40),
    forgetting=st.sampled_from([1.0, 0.97, 0.6]),
    ridge=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_scores_are_those_of_dense_ridge_regression(
    seed: int, width: int, n: int, forgetting: float, ridge: float
) -> None:
    rng = np.random.default_rng(seed)
    how = Settings(width=width, ridge=ridge, forgetting=forgetting, exploration=0.7)
    fast, slow = Bandit(how), BanditTwin(how)
    for _ in range(n):
        x, arm = context(rng, width), ARMS[rng.integers(3)]
        reward, weight = float(3 * rng.standard_normal()), float(rng.uniform(0.05, 1))
        fast.update(arm, x, reward, weight=weight)
        slow.update(arm, x, reward, weight)
    x = context(rng, width)
    found = fast.scores(ARMS, x)
    expected = [slow.index(arm, x, fast.beta) for arm in ARMS]
    assert found.learned + found.bonus == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert (found.learned[3], found.bonus[3]) == (0.0, 0.0)  # "d" was never seen
    alone = fast.predicted(ARMS, x[None])
    assert alone[0] == pytest.approx(found.learned, rel=1e-9, abs=1e-9)


def test_with_many_arms_the_best_is_exact_and_none_looks_better_than_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    many = Bandit(Settings(width=6, exploration=1.0))
    arms = [str(k) for k in range(200)]
    for _ in range(1_000):
        many.update(arms[rng.integers(180)], context(rng, 6), float(rng.standard_normal()))
    for _ in range(40):
        x, offset = context(rng, 6), rng.standard_normal(200)
        short = many.scores(arms, x, offset, top=3)
        with monkeypatch.context() as patch:
            patch.setattr(module, "SHORTLIST", 1_000)
            whole = many.scores(arms, x, offset, top=3)
        index, exact = (offset + s.learned + s.bonus for s in (short, whole))
        best = np.argsort(-exact)[:3]
        assert index[best] == pytest.approx(exact[best], abs=1e-5)
        assert list(np.argsort(-index)[:3]) == list(best)
        assert (index <= exact + 1e-5).all()  # float32
        assert (short.bonus < whole.bonus).any()  # so not all were worked out


def test_the_bonus_factor_follows_its_formula_and_grows_slowly() -> None:
    how = Settings(width=4, exploration=0.5, ridge=2.0, noise=0.3)
    one = Bandit(how)
    at = []
    for _ in range(100):
        at.append(one.beta)
        one.update("a", np.ones(4), 0.0)
    spread = 2 * math.log(20) + 4 * math.log(1 + 50 / 8)
    assert at[50] == pytest.approx(0.5 * (math.sqrt(2) + 0.3 * math.sqrt(spread)))
    assert at == sorted(at)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_f03_numbers_that_are_not_finite_change_nothing(bad: float) -> None:
    one, x = Bandit(Settings(width=2)), np.array([0.5, 1.0])
    one.update("a", x, 1.0)
    before = one.scores(["a", "b"], x)
    for call in (one.update, one.update_relative):
        with pytest.raises(BadRequest, match="an observation must be finite"):
            call("a", x, bad)
        with pytest.raises(BadRequest, match="an observation must be finite"):
            call("a", np.array([bad, 1.0]), 1.0)
        with pytest.raises(BadRequest, match="with a weight above 0 and up to 1"):
            call("a", x, 1.0, weight=bad)
    after = one.scores(["a", "b"], x)
    assert (after.learned == before.learned).all()
    assert one.observations == 1


def test_f17_an_arm_begins_from_another_once() -> None:
    one, x = Bandit(Settings(width=2, exploration=0.0)), np.array([0.5, 1.0])
    for _ in range(50):
        one.update("old", x, 1.0)
        one.update("bad", x, -1.0)
    assert not one.warm_start("new", "unknown", trust=0.5)
    assert one.warm_start("new", "old", trust=0.5)
    assert one.phase("new") == "warm"
    worth = one.scores(["new", "old"], x).learned
    assert worth[0] == pytest.approx(worth[1] / 2)
    assert not one.warm_start("new", "bad", trust=0.5)
    assert not one.warm_start("third", "new", trust=0.5)  # warm, so nothing of its own
    assert not one.warm_start("old", "bad", trust=0.5)
    one.update("new", x, 0.0)
    assert one.phase("new") == "trained"
    assert not one.warm_start("new", "bad", trust=0.5)
    assert one.scores(["new"], x).learned[0] < worth[0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_f19_arms_come_and_go_in_any_order(seed: int) -> None:
    rng, dice = np.random.default_rng(seed), random.Random(seed)
    how = Settings(width=3, ridge=1.0)
    one, kept = Bandit(how), {}
    for _ in range(60):
        arm, x = dice.choice("abcdef"), context(rng, 3)
        if dice.random() < 0.3:
            one.forget(arm)
            kept.pop(arm, None)
        else:
            one.update(arm, x, float(rng.standard_normal()))
            kept.setdefault(arm, []).append(x)
        if dice.random() < 0.1:
            again = Bandit(how)
            again.restore(*one.arrays())
            one = again
    assert set(one.arms()) == set(kept)
    for arm in "abcdef":
        seen = kept.get(arm, [])
        assert one.count(arm) == len(seen)
        assert one.phase(arm) == ("trained" if seen else "cold")
        matrix = np.eye(3) + sum((np.outer(x, x) for x in seen), np.zeros((3, 3)))
        x = context(rng, 3)
        width = math.sqrt(x @ np.linalg.inv(matrix) @ x) - math.sqrt(x @ x)
        found = one.scores([arm], x).bonus[0]
        assert found == pytest.approx(one.beta * width, rel=1e-4, abs=1e-6)


def test_beyond_the_most_arms_the_longest_unused_is_dropped() -> None:
    one, x = Bandit(Settings(width=2, most_arms=2)), np.array([0.5, 1.0])
    for arm in ("a", "b", "a", "c"):
        one.update(arm, x, 1.0)
    assert set(one.arms()) == {"a", "c"}


def test_an_arm_that_is_better_than_usual_does_not_move_the_others() -> None:
    one, x = Bandit(Settings(width=2, exploration=0.0)), np.array([0.5, 1.0])
    for _ in range(20):
        one.update("a", x, -2.0)
        one.update("b", x, -2.0)
    before = one.scores(["a", "b"], x).learned
    for _ in range(5):
        one.update_relative("a", x, 0.5)
    after = one.scores(["a", "b"], x).learned
    assert after[0] > before[0] + 0.05
    assert after[1] == pytest.approx(before[1])


def test_old_observations_fade_when_forgetting() -> None:
    x = np.array([1.0])
    found = {}
    for forgetting in (1.0, 0.8):
        one = Bandit(Settings(width=1, forgetting=forgetting, exploration=0.0))
        for reward in [1.0] * 50 + [-1.0] * 20:
            one.update("a", x, reward)
            one.update("b", x, 0.0)
        found[forgetting] = one.scores(["a", "b"], x).learned[0]
    assert found[0.8] < found[1.0] - 0.3


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes() -> None:
    one, x = Bandit(Settings(width=2)), np.array([0.5, 1.0])
    one.update("a", x, 1.0)
    plain, tables = one.arrays()
    with pytest.raises(BadConfig, match=r"the router's state has no table b of shape \(1, 2\)"):
        one.restore(plain, {**tables, "b": np.zeros((1, 3))})
    with pytest.raises(BadConfig, match="numbers in b that are not finite"):
        one.restore(plain, {**tables, "b": np.full((1, 2), np.nan)})
    assert one.count("a") == 1.0


def test_threads_can_decide_while_others_learn() -> None:
    one, errors = Bandit(Settings(width=3)), []
    stop = threading.Event()

    def decide() -> None:
        x = np.array([0.1, 0.2, 1.0])
        while not stop.is_set():
            found = one.scores(["1", "2", "99"], x)
            if not (np.isfinite(found.learned).all() and (found.bonus <= 0).all()):
                errors.append(found)

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for n in range(600):
        one.update(str(n % 40), context(rng, 3), float(rng.standard_normal()))
        if n % 7 == 0:
            one.forget(str(n % 31))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
