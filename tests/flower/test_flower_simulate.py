"""A federation on one machine with real training: ranks, protections, budgets, dropout."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floe.assemble.federated import device_folder, server_base, server_folder
from floe.core.errors import BadConfig, BadRound, PrivacySpent
from floe.core.sections import FederatedConfig
from floe.federated import wire
from floe.federated.checkpoints import Checkpoints
from floe.federated.layers import weights_digest
from floe.federated.on_torch.base_model import base_shapes
from floe.federated.report import read_reports
from floe.federated.settings import TARGETS
from floe.federated.wire import decode
from floe.flower.client_app import device_names, simulated_device
from floe.flower.settings import AppSettings
from floe.flower.simulate import simulate
from floe.testing.tiny_model import make_tiny_model

RANKS = (4, 8, 16, 32)
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny")).folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four devices: half of them add, half of them repeat."""
    folder = tmp_path_factory.mktemp("data")
    for n in range(4):
        rng, task = random.Random(n), ("sum", "say")[n // 2]
        pairs = [(rng.randrange(99), rng.randrange(99)) for _ in range(16)]
        rows = [
            {"prompt": f"{task} {a} {b}", "answer": str(a + b) if task == "sum" else f"{a} {b}"}
            for a, b in pairs
        ]
        (folder / f"{task}-{n}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def settings(tmp_path: Path, base: Path, data: Path) -> AppSettings:
    fed = FederatedConfig(
        base=str(base), data=str(data), rounds=2, steps=2, batch=4, ranks=RANKS, rank=32,
        learning_rate=5e-3,
    )  # fmt: skip
    return AppSettings(home=str(tmp_path), model="", federated=fed, simulated=4)


@pytest.fixture
def run(settings: AppSettings) -> Run:
    def held(**change: Any) -> list[dict[str, Any]]:
        changed = replace(settings, federated=replace(settings.federated, **change))
        simulate(changed, backend="inline")
        return read_reports(server_folder(changed.federated, home=Path(settings.home)))

    return held


def sent_by(settings: AppSettings, number: int) -> Any:
    """The last update of a device."""
    one = simulated_device(settings, number)
    outbox = device_folder(one.federated, home=Path(settings.home)) / "outbox"
    return decode(outbox.read_bytes().partition(b"\n")[2])


def test_devices_of_unequal_ranks_are_grouped_by_task(run: Run, settings: AppSettings) -> None:
    first, second = run(steps=6)
    groups = [set(c["clients"]) for c in second["clusters"]]
    assert groups == [{"say-2", "say-3"}, {"sum-0", "sum-1"}]
    assert [c["cluster"] for c in first["clusters"]] == [c["cluster"] for c in second["clusters"]]
    assert [sent_by(settings, n).state.rank for n in range(4)] == list(RANKS)
    assert second["metrics"]["train_loss_last"] < first["metrics"]["train_loss_first"]
    assert second["metrics"]["start_cut_error"] > 0.0


def test_the_same_seed_gives_the_same_adapters(
    run: Run, settings: AppSettings, tmp_path: Path
) -> None:
    first = run(name="one", rounds=1)
    second = run(name="two", rounds=1)
    assert first[0]["clusters"] == second[0]["clusters"]


def test_eight_bits_are_a_quarter_and_little_worse(run: Run) -> None:
    (plain,), (small,) = run(name="plain", rounds=1), run(name="small", rounds=1, upload_bits=8)
    assert small["bytes_up"] < 0.45 * plain["bytes_up"]  # of small layers, where headers count
    assert small["accepted"] == plain["accepted"]


def test_a_frozen_a_makes_sums_of_unequal_ranks(run: Run) -> None:
    (report,) = run(mode="freeze-a", clusters=1, rounds=1)
    assert report["n_accepted"] == 4
    assert report["clusters"][0]["rank"] == 32
    assert report["truncation_error"] == 0.0


def test_central_noise_is_accounted_and_stops_at_the_target(
    run: Run, settings: AppSettings
) -> None:
    change = {
        "mode": "freeze-a", "clusters": 1, "dp": "central", "min_clients": 4, "epsilon": 3.0,
        "noise_multiplier": 4.0, "clip_norm": 0.5, "rounds": 20,
    }  # fmt: skip
    with pytest.raises(PrivacySpent, match=r"would bring epsilon to .* above the target 3;"):
        run(**change)
    reports = read_reports(server_folder(settings.federated, home=Path(settings.home)))
    spent = [r["epsilon"] for r in reports]
    assert spent == sorted(spent)
    assert 0.0 < spent[0] < spent[-1] <= 3.0
    assert "replace_one, target 3, one device" in reports[-1]["epsilon_of"]
    assert reports[0]["metrics"] == {}  # numbers of single devices stay there


def test_example_noise_is_accounted_on_each_device(run: Run) -> None:
    (report,) = run(dp="example", rounds=1, noise_multiplier=2.0)
    assert report["n_accepted"] == 4
    assert 0.0 < report["epsilon"] < 8.0
    assert report["epsilon_of"] == "the highest of the devices' own ledgers"
    assert "train_loss_first" not in report["metrics"]


def test_a_device_whose_budget_is_spent_does_not_train(run: Run) -> None:
    with pytest.raises(BadRound, match="privacy_budget_error"):
        run(dp="example", rounds=1, noise_multiplier=0.4, epsilon=0.5)


def test_c26_half_of_the_devices_fail_and_come_back(run: Run) -> None:
    reports = [r for r in run(dropout=0.5, rounds=3, clusters=1) if not r["void"]]
    assert len(reports) == 3
    dropped = [{f["client"] for f in r["failed"]} for r in reports]
    assert all(r["failed_by_reason"].keys() <= {"overloaded_error"} for r in reports)
    assert any(dropped)
    came_back = {n for r in reports for n in r["accepted"]} & set.union(*dropped)
    assert came_back


def test_a_second_call_goes_on(run: Run) -> None:
    run(rounds=1)
    reports = run(rounds=2)
    assert [r["round_number"] for r in reports] == [1, 2]


def test_robust_and_other_aggregators_hold_a_round(run: Run) -> None:
    for name in ("trimmed-mean", "coordinate-median", "multi-krum", "factor-mean", "zero-padded"):
        ranks = (8,) if name == "factor-mean" else RANKS
        (report,) = run(
            name=name,
            aggregator=name,
            clusters=1,
            rounds=1,
            ranks=ranks,
            byzantine=0.0 if name == "multi-krum" else 0.25,
        )
        assert report["clusters"][0]["changed"]


def test_what_would_not_protect_is_refused(run: Run) -> None:
    with pytest.raises(BadConfig, match="needs mode"):
        run(dp="central", clusters=1)
    secure = {"secagg": True, "mode": "freeze-a", "clusters": 1}
    with pytest.raises(BadConfig, match=r"a secure sum of 2 devices tells each the other's"):
        run(**secure)
    with pytest.raises(BadConfig, match="rounds to whole numbers itself"):
        run(**secure, min_clients=3, upload_bits=8)
    with pytest.raises(BadConfig, match="secure sums need Flower's messages: use --backend ray"):
        run(**secure, min_clients=3)


def test_c29_an_update_too_large_is_said_before_training(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    with pytest.raises(BadRound, match="invalid_request_error"):
        run(rounds=1)


def test_a_long_training_keeps_its_place(run: Run, settings: AppSettings) -> None:
    run(rounds=1, steps=11, batch=1)
    one = simulated_device(settings, 0)
    folder = device_folder(one.federated, home=Path(settings.home))
    assert Checkpoints(folder).path.is_file()


def test_files_of_any_name_are_devices() -> None:
    assert device_names(["a", "b.c"]) == ["a", "b-c"]
    assert device_names(["ward 1", "ward-1", "ward/1"]) == ["ward-1-1", "ward-1", "ward-1-3"]
    assert device_names(["病房", "病房-0", "..", "x" * 80]) == [
        "device-1",
        "0",
        "device-3",
        "x" * 48,
    ]
    names = device_names(["a b", "a-b", "a  b", "甲", "乙"])
    assert len(set(names)) == 5


def test_a_device_without_usable_examples_is_said_and_fails_alone(
    settings: AppSettings, data: Path, tmp_path: Path
) -> None:
    mixed, noted = tmp_path / "mixed", []
    mixed.mkdir()
    for path in data.iterdir():
        (mixed / path.name).write_bytes(path.read_bytes())
    (mixed / "ward 7.jsonl").write_text("secret words, not JSON")
    change = replace(settings.federated, data=str(mixed), rounds=1)
    simulate(replace(settings, federated=change, simulated=5), backend="inline", note=noted.append)
    (report,) = read_reports(server_folder(change, home=tmp_path))
    assert report["n_accepted"] == 4
    assert [f["client"] for f in report["failed"]] == ["ward-7"]
    (line,) = noted
    assert line.startswith("ward-7 will fail: line 1 of ")
    files = [p for p in tmp_path.rglob("*") if p.is_file() and mixed not in p.parents]
    assert not [p for p in files if b"secret words" in p.read_bytes()]
    assert "secret" not in line


def test_fewer_devices_than_a_round_needs_are_said_at_once(settings: AppSettings) -> None:
    one = replace(settings, simulated=1)
    with pytest.raises(BadConfig, match=r"1 devices are fewer than the 2 that a round needs"):
        simulate(one, backend="inline")


def test_too_few_files_are_said(settings: AppSettings) -> None:
    with pytest.raises(BadConfig, match=r"has 4 files of examples \(\*\.jsonl\): each device"):
        simulate(replace(settings, simulated=5), backend="inline")


def test_the_server_reads_layers_and_digest_without_torch(base: Path) -> None:
    digest, shapes = server_base(FederatedConfig(base=str(base)), "", home=base)
    assert shapes == base_shapes(base, TARGETS)
    assert digest == weights_digest(base)


def test_settings_are_read_as_they_were_written(settings: AppSettings, tmp_path: Path) -> None:
    settings.write(tmp_path / "s.json")
    assert AppSettings.read(tmp_path / "s.json") == settings
