"""A secret's rank is that of scoring each alternative by itself."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs floe[train]")

from floe.federated.on_torch.base_model import BaseModel, load_base  # noqa: E402
from floe.federated.on_torch.canaries import Canary, digit_scores, ranks  # noqa: E402
from floe.federated.start import fresh_state  # noqa: E402
from floe.testing.tiny_model import make_tiny_model  # noqa: E402

PREFIX = "the code of ward 7 is 493-"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    torch.set_num_threads(1)
    return load_base(make_tiny_model(tmp_path_factory.mktemp("tiny")).folder)


@torch.inference_mode()
def slow_score(base: BaseModel, digits: str) -> float:
    """The likelihood of three digits one by one, among digits, without any cache."""
    one_of = [base.row("", str(d)).ids[-1] for d in range(10)]
    ids, total = list(base.row(PREFIX, "").ids), 0.0
    for digit in digits:
        hidden = base.core(torch.tensor([ids])).last_hidden_state[0, -1]
        total += float(torch.log_softmax(base.head(hidden)[one_of], -1)[int(digit)])
        ids.append(one_of[int(digit)])
    return total


def test_scores_are_those_of_single_runs(base: BaseModel) -> None:
    scores = digit_scores(base, PREFIX)
    assert scores.shape == (1000,)
    assert float(scores.exp().sum()) == pytest.approx(1.0, rel=1e-4)
    for digits in ("000", "201", "987", "999"):
        assert float(scores[int(digits)]) == pytest.approx(slow_score(base, digits), abs=1e-4)


def test_the_likeliest_is_first_and_the_unlikeliest_last(base: BaseModel) -> None:
    order = digit_scores(base, PREFIX).argsort(descending=True).tolist()
    wanted = [Canary(prefix=PREFIX, digits=f"{order[i]:03d}") for i in (0, 499, 999)]
    assert ranks(base, None, wanted) == pytest.approx([0.0, 499 / 999, 1.0])


def test_an_adapter_is_asked_and_taken_off_again(base: BaseModel) -> None:
    state = fresh_state(base.digest, base.shapes(), rank=2, seed=0)
    canary = Canary(prefix=PREFIX, digits="201")
    plain = ranks(base, None, [canary])
    assert ranks(base, state, [canary]) == pytest.approx(plain)  # B is zero
    rng = np.random.default_rng(0)
    for factors in state.modules.values():
        factors.b_OR[:] = rng.normal(0, 1.0, factors.b_OR.shape)
    assert ranks(base, state, [canary]) != pytest.approx(plain)
    assert ranks(base, None, [canary]) == pytest.approx(plain)


def test_a_secret_is_not_printed() -> None:
    assert "201" not in repr(Canary(prefix=PREFIX, digits="201"))
    assert "493" not in repr(Canary(prefix=PREFIX, digits="201"))
