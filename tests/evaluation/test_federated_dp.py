"""The privacy part of `floe bench federated` on a tiny model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs floe[train]")
pytest.importorskip("opacus", reason="needs floe[dp]")

from floe.evaluation import federated_dp  # noqa: E402
from floe.evaluation.federated_dp import QUICK  # noqa: E402
from floe.federated.on_torch.base_model import BaseModel, load_base  # noqa: E402
from floe.testing.tiny_model import make_tiny_model  # noqa: E402

TINY = replace(
    QUICK, layers=None, tasks=1, per_task=4, canaries=8, steps=40, targets=(3.0, 8.0), held_out=4,
    learning_rate=3e-2,
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    torch.set_num_threads(1)
    return load_base(make_tiny_model(tmp_path_factory.mktemp("tiny")).folder)


def test_figures_are_flat_and_state_their_terms(base: BaseModel) -> None:
    said: list[str] = []
    figures = federated_dp.run_plan(base, TINY, said.append)
    assert all(isinstance(v, int | float | str | None) for v in figures.values())
    terms = ("dp_delta", "dp_rate", "dp_steps", "dp_noise_eps3", "dp_noise_eps8", "dp_examples")
    assert all(figures[name] for name in terms)
    assert figures["dp_noise_eps3"] > figures["dp_noise_eps8"]
    assert figures["loss_dp_none"] < figures["loss_dp_base"]
    assert {"loss_dp_eps3", "loss_dp_eps8", "canary_exposure", "canary_count"} <= set(figures)
    assert figures["canary_exposure_none"] < 25  # remembered without privacy
    assert figures["canary_exposure"] > figures["canary_exposure_none"]
    assert len(said) == 3


def test_examples_hold_each_secret_once_and_no_held_out_row(base: BaseModel) -> None:
    rows, held_out, secrets = federated_dp.examples(base, TINY, seed=1)
    assert len(rows) == 12
    assert len(secrets) == 8
    for secret in secrets:
        assert rows.count(secret.row(base)) == 1
    assert not set(held_out) & set(rows)
    assert federated_dp.examples(base, TINY, seed=1)[0] == rows


def test_secrets_are_drawn_evenly() -> None:
    rng = random.Random(0)
    digits = [int(federated_dp.canary(rng, n).digits) for n in range(2000)]
    assert abs(sum(digits) / 2000 - 499.5) < 5 * 288.7 / 2000**0.5
    assert federated_dp.canary(rng, 6).prefix.startswith("the code of ward 7 is ")


def test_the_accountant_is_compared_where_prv_can_tell() -> None:
    grid = ((1.0, 0.05, 50), (4.0, 0.001, 1))  # the second is next to nothing
    figures = federated_dp.accountant_figures(grid, lambda _: None)
    assert figures["epsilon_points"] == 1
    assert 0 < figures["epsilon_abs_err"] <= 0.01
    assert figures["epsilon_worst_at"] == "noise 1.0, rate 0.05, steps 50"


def test_the_quick_form_uses_the_layer_cut_base(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int | None] = []

    def open_base(name: str, *, home: Path, n_layers: int | None = None) -> BaseModel:
        opened.append(n_layers)
        return base

    monkeypatch.setattr("floe.assemble.learning.open_base", open_base)
    small = replace(TINY, steps=4, targets=(8.0,))
    figures = federated_dp.trained_figures(replace(small, layers=2), lambda _: None)
    assert opened == [2]
    assert figures["dp_layers"] == 2


def test_the_long_form_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path))
    calls: list[str] = []

    def accountant(grid: object, say: object) -> dict[str, float]:
        calls.append("accountant")
        return {"epsilon_abs_err": 0.001}

    def trained(plan: federated_dp.Plan, say: object) -> dict[str, float]:
        calls.append("canaries" if plan.canaries else "losses")
        if calls == ["accountant", "losses"]:
            raise KeyboardInterrupt
        return {"canary_count": 1} if plan.canaries else {"loss_dp_none": 2.0}

    monkeypatch.setattr(federated_dp, "accountant_figures", accountant)
    monkeypatch.setattr(federated_dp, "trained_figures", trained)
    with pytest.raises(KeyboardInterrupt):
        federated_dp.dp_figures(True, lambda _: None)
    figures = federated_dp.dp_figures(True, lambda _: None)
    assert calls == ["accountant", "losses", "losses", "canaries"]
    assert figures == {"epsilon_abs_err": 0.001, "loss_dp_none": 2.0, "canary_count": 1}
    assert not list((tmp_path / "bench").iterdir())
