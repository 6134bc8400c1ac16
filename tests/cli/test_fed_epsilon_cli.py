"""`floe fed epsilon`: planning questions and their answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("dp_accounting", reason="needs floe[dp]")

from floe.cli.main import app
from floe.core.errors import BadConfig
from floe.federated.accountant import epsilon, gaussian_epsilon
from floe.federated.sampling import Mechanism, Sampling


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["fed", "epsilon", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*args: str) -> dict[str, Any]:
    return json.loads(run(*args, "--json"))


def test_the_quoted_noise_and_the_rates_where_it_holds() -> None:
    out = answer("--noise", "0.5", "--rate", "0.01", "--rounds", "100", "--delta", "1e-5")
    one = Mechanism(noise_multiplier=0.5, sampling=Sampling(kind="poisson", rate=0.01), steps=100)
    assert out["epsilon"] == epsilon(one, delta=1e-5)
    within = {row["rate"]: row["within"] for row in out["table"]}
    assert within[0.001]
    assert not within[0.01]
    assert not within[1.0]
    text = run("--noise", "0.5", "--rate", "0.01", "--rounds", "100")
    assert "epsilon 6.476 for noise 0.5" in text
    assert "add_remove" in text
    assert "within 3" in text


def test_the_noise_for_a_target() -> None:
    out = answer("--target-epsilon", "3", "--rate", "0.05", "--rounds", "10", "--steps", "4")
    assert 2.9 < out["epsilon"] <= 3
    text = run("--target-epsilon", "3", "--rate", "0.05", "--rounds", "10", "--steps", "4")
    assert f"noise {out['noise_needed']:.4g} keeps 10 rounds of 4" in text


def test_the_rounds_that_fit() -> None:
    asked = ("--noise", "4", "--rate", "1", "--sampling", "all", "--target-epsilon", "3")
    rounds = answer(*asked)["rounds_allowed"]
    assert gaussian_epsilon(4 / rounds**0.5, delta=1e-5) <= 3
    assert gaussian_epsilon(4 / (rounds + 1) ** 0.5, delta=1e-5) > 3
    assert f"{rounds} such rounds fit in epsilon 3" in run(*asked)


def test_each_round_of_shuffled_batches_begins_a_pass() -> None:
    out = answer("--noise", "2", "--rate", "0.3", "--rounds", "3", "--sampling", "shuffled")
    assert out["epsilon"] == pytest.approx(gaussian_epsilon(2 / 3**0.5, delta=1e-5))


def test_adjacency_is_heard() -> None:
    asked = ("--noise", "2", "--rate", "1", "--sampling", "all", "--rounds", "2")
    assert answer(*asked, "--adjacency", "replace_one")["epsilon"] > answer(*asked)["epsilon"]


def test_an_infinite_epsilon_is_null_in_json() -> None:
    assert answer("--rate", "0.1", "--noise", "1e-9")["epsilon"] is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--rate", "0.1"), "say --noise, or --target-epsilon, or both"),
        (("--rate", "2", "--noise", "1"), "sampling rate is 2"),
        (("--rate", "nan", "--noise", "1"), "sampling rate is nan"),
        (("--rate", "0.1", "--noise", "0"), "noise multiplier is 0"),
        (("--rate", "0.1", "--noise", "1", "--rounds", "0"), "whole numbers from 1"),
        (("--rate", "0.1", "--noise", "1", "--rounds", "9999999"), "together at most 1,000,000"),
        (("--rate", "0.1", "--noise", "1", "--delta", "1"), "delta is 1"),
        (("--rate", "0.1", "--noise", "1", "--sampling", "random"), "no sampling is called"),
        (("--rate", "0.1", "--noise", "1", "--adjacency", "x"), "the adjacency is 'x'"),
    ],
)
def test_c11_what_cannot_be_answered_is_said(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        run(*args)
