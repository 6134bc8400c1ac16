"""`floe tailor search` on a tiny model with a made-up device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floe.cli.main import app
from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets, refuse_unlimited
from floe.tailoring.design import design, grid_of
from floe.tailoring.latency_table import Row, fit_table
from floe.tailoring.plan_file import read_plan
from floe.tailoring.profile import DeviceProfile, Limits
from floe.tailoring.profile_file import write_profile
from floe.tailoring.shapes import check_plan
from floe.testing.tiny_layers import TinyLayers, TinyShape, make_tiny_layers


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyLayers:
    shape = TinyShape(n_layers=5, n_ffn=256, is_tied=True)
    return make_tiny_layers(tmp_path_factory.mktemp("cli"), shape)


@pytest.fixture(scope="module")
def profile(tiny: TinyLayers, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    from floe.tailoring.on_torch.blocks import shape_of
    from floe.tailoring.on_torch.reload import load_folder

    shape = shape_of(load_folder(tiny.folder), base_digest="a" * 64)
    quants = ("F16", "Q8_0")
    grid = grid_of(shape, quants)
    rows = [
        Row(
            layers=probe.layers, quants=probe.quants, n_vocab=shape.n_vocab,
            depth_tokens=probe.depth_tokens or 64, decode_ms=ms, prefill_ms=20 * ms,
        )
        for probe in design(shape, grid, rows_per_quant=9, deep_tokens=200, seed=7)
        for ms in [0.5 + sum(0.02 * p.n_kv_heads * p.q_per_kv + 1e-3 * p.n_ffn
                             for p in probe.layers)]
    ]  # fmt: skip
    table = fit_table(rows, grid=grid, shape=shape, prompt_tokens=64)
    path = tmp_path_factory.mktemp("profile") / "device_profile.json"
    write_profile(
        path,
        DeviceProfile(
            limits=Limits(memory_budget_mb=5.0), table=table, rows=tuple(rows),
            machine={"cpu": "made up"}, engine="made up", settings={}, made_at="2026-01-01",
        ),
    )  # fmt: skip
    return path


def run(tiny: TinyLayers, profile: Path, out: Path, *more: str):
    arguments = [
        "tailor", "search", "--profile", str(profile), "--folder", str(tiny.folder), "--any-board",
        "--latency-ratio", "0.7", "--evaluations", "8", "--out", str(out), "--json", *more,
    ]  # fmt: skip
    return CliRunner().invoke(app, arguments)


def test_a_plan_inside_the_limits_is_written_and_a_killed_search_goes_on(
    tiny: TinyLayers, profile: Path, tmp_path: Path
) -> None:
    out, page = tmp_path / "plan.json", tmp_path / "search.html"
    done = run(tiny, profile, out, "--plot", str(page), "--quants", "Q8_0,F16")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["evaluations"] == 8
    assert figures["budget_violations"] == 0
    assert figures["cost_source"] == "table"
    assert figures["memory_mb"] <= 5.0
    file = read_plan(out)
    assert figures["decode_ms"] <= file.budgets.decode_ms
    assert set(file.plan.quants) == {"embedding", "attention", "ffn"}
    assert file.plan.layers[0].n_ffn == 256
    from floe.tailoring.profile_file import read_profile

    check_plan(file.plan, read_profile(profile, here=None).shape, rules=file.rules)
    assert "<svg" in page.read_text()
    assert "perplexity" in done.stderr

    trials = tmp_path / "plan.trials.jsonl"
    lines = trials.read_text().splitlines(keepends=True)
    trials.write_text("".join(lines[:4]))
    again = run(tiny, profile, out, "--resume", "--quants", "Q8_0,F16")
    assert json.loads(again.stdout.splitlines()[-1]) == {**figures, "kept_evaluations": 3}
    other = run(tiny, profile, out, "--resume", "--seed", "1", "--quants", "Q8_0,F16")
    assert isinstance(other.exception, BadPlan)
    assert "is of another search" in str(other.exception)


def test_the_profiles_own_model_is_asked_for(
    profile: Path, tmp_path: Path, layered: TinyLayers
) -> None:
    done = run(layered, profile, tmp_path / "plan.json")
    assert isinstance(done.exception, BadPlan)
    assert "the device profile is of a model with 5 layers" in str(done.exception)


def test_limits_that_no_plan_keeps_are_named(
    tiny: TinyLayers, profile: Path, tmp_path: Path
) -> None:
    done = run(tiny, profile, tmp_path / "plan.json", "--memory-mb", "0.1")
    assert isinstance(done.exception, BadPlan)
    assert "no plan keeps the budget memory_bytes = 100000" in str(done.exception)
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--method", "evolutionery"), "did you mean evolutionary?"),
        (("--importances", "flap,luck"), "no importance is called 'luck'"),
        (("--latency-ms", "nan"), "the budget decode_ms cannot be nan"),
        (("--energy-mj", "5"), "the device profile has no energy"),
    ],
)
def test_wishes_that_cannot_be_are_refused_before_anything_is_measured(
    tiny: TinyLayers, profile: Path, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    done = run(tiny, profile, tmp_path / "plan.json", *more)
    assert isinstance(done.exception, BadPlan) and said in str(done.exception)
    assert "measuring" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_trials_of_the_search_before_are_laid_aside_and_it_is_said(
    tiny: TinyLayers, profile: Path, tmp_path: Path
) -> None:
    trials = tmp_path / "plan.trials.jsonl"
    trials.write_text("hours of work\n")
    done = run(tiny, profile, tmp_path / "plan.json", "--evaluations", "1")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plan.trials.old.jsonl").read_text() == "hours of work\n"
    assert "the earlier trials are kept in" in done.stderr
    assert len(trials.read_text().splitlines()) == 2


def test_without_any_limit_there_is_nothing_to_search_for() -> None:
    with pytest.raises(BadPlan, match="no limit is given"):
        refuse_unlimited(Budgets())
    refuse_unlimited(Budgets(kv_bytes=0))


def test_a_profiles_limits_are_finite() -> None:
    with pytest.raises(BadPlan, match="the limit memory_budget_mb cannot be nan"):
        Limits(memory_budget_mb=float("nan"))
    with pytest.raises(BadPlan, match="the limit latency_slo_ms cannot be -1"):
        Limits(latency_slo_ms=-1)
