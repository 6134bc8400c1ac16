"""The output-length predictor: features beside a plain twin, bounds, and its honest error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.power.length import (
    EVERY_TOKENS,
    N_PROMPT,
    RECORDED_TOKENS,
    LengthModel,
    LengthPredictor,
    expanded,
    fit_length,
    predicted,
    prompt_features,
    recorded_rows,
    shipped_length_model,
)


def test_a_prompts_wording_shows_in_its_features() -> None:
    short = prompt_features("Is Rome in Italy? Answer with yes or no.", 12)
    long = prompt_features("Write a detailed essay\nand list 3 steps", 9)
    assert len(short) == len(long) == N_PROMPT
    assert short[1] == 0 < long[1] and short[7] == 0 < long[7]
    assert long[5] > short[5] == 0 and short[6] > long[6] == 0
    assert prompt_features("Why?", 2)[2] == 1.0 and prompt_features("Why", 2)[2] == 0.0
    assert prompt_features("def f(x):", 5)[3] == 1.0 == prompt_features("How many?", 3)[4]
    most = prompt_features("write 1 how many select\n" * 99, 10**6)
    assert all(0 <= x <= 3 for x in most)


@given(st.lists(st.floats(0.0, 9.0), min_size=13, max_size=13))
def test_products_beside_two_loops(values: list[float]) -> None:
    made = expanded(np.array(values)[None, :])[0]
    scale = [1 / 128, 0.3, 0.3, 0.15, 0.15, *([1.0] * N_PROMPT)]
    x = [v * s for v, s in zip(values, scale, strict=True)]
    slow = [1.0, *x, math.log1p(values[0])]
    slow += [x[i] * x[j] for i in range(13) for j in range(i, 13)]
    assert made.tolist() == pytest.approx(slow)


def test_it_learns_which_answers_are_long_and_how_long_the_others_are() -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.0, 1.0, size=(600, 13))
    rows[:, 0] = rng.integers(0, 100, size=600)
    ended = (rows[:, 8] > 0.5).astype(float)
    left = np.where(ended > 0, 120.0 - rows[:, 0], RECORDED_TOKENS - rows[:, 0])
    weights = fit_length(rows, left, ended, ridge=0.01)
    errors = np.abs(predicted(rows, *weights) - left)
    assert float(np.median(errors)) < 8.0 and float(np.mean(errors)) < 15.0
    stiff = fit_length(rows, left, ended, ridge=1e6)
    assert max(float(np.abs(w).max()) for w in stiff) < 0.01


def test_past_the_recorded_tokens_a_long_answer_has_sixty_four_left() -> None:
    rows = np.zeros((3, 13))
    rows[:, 0] = (0.0, 192.0, 5000.0)
    ones = np.zeros(106)
    ones[0] = 1.0
    assert predicted(rows, ones, ones).tolist() == [256.0, 64.0, 64.0]
    assert predicted(rows, -ones, ones).tolist() == pytest.approx([math.e] * 3)
    assert predicted(rows, -ones, -9 * ones).tolist() == [1.0] * 3


def test_the_predictor_sees_now_and_the_last_sixteen() -> None:
    seen: list[np.ndarray] = []

    class Model(LengthModel):
        def left(self, row: np.ndarray) -> float:
            seen.append(row)
            return 1e9

    model = Model(
        long_F=np.zeros(1), left_F=np.zeros(1), mae_tokens=1, constant_mae_tokens=1, log_spread=1
    )
    predictor = LengthPredictor(model, prompt="Why?", prompt_tokens=2)
    assert predictor.left(most=50) == 50.0 and not seen
    entropies = [0.1 * k for k in range(20)]
    for e in entropies:
        predictor.seen(e, 0.0 if e < 1 else 0.01)
    assert predictor.left(most=37) == 37.0
    wanted = [19, entropies[-1], sum(entropies[-16:]) / 16, -2.0, (6 * -8 + 10 * -2) / 16]
    assert seen[0][:5].tolist() == pytest.approx(wanted)
    assert tuple(seen[0][5:]) == prompt_features("Why?", 2)


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(0, 1)), max_size=40), st.integers(1, 999))
def test_the_shipped_one_stays_between_one_and_the_limit(
    tokens: list[tuple[float, float]], most: int
) -> None:
    predictor = LengthPredictor(shipped_length_model(), prompt="List 3 steps", prompt_tokens=5)
    for entropy, end in tokens:
        predictor.seen(entropy, end)
    assert 1.0 <= predictor.left(most=most) <= most


def test_the_recorded_rows_are_numbers_of_whole_answers() -> None:
    rows = recorded_rows()
    assert rows.shape[1] == 4 + 4 + N_PROMPT and np.isfinite(rows).all()
    for prompt in np.unique(rows[:, 0]):
        own = rows[rows[:, 0] == prompt]
        assert (np.diff(own[:, 1]) == EVERY_TOKENS).all()
        assert len({*(own[:, 1] + own[:, 2])}) == 1 and (own[:, 2] >= 1).all()


def test_its_error_on_prompts_it_was_not_fitted_to_is_below_a_constants() -> None:
    model = shipped_length_model()
    assert model.long_F.shape == model.left_F.shape == expanded(np.zeros((1, 13)))[0].shape
    assert 0 < model.mae_tokens < model.constant_mae_tokens and model.log_spread > 0
