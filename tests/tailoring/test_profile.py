"""Device profiles: timing, the file, another board's, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from floe.assemble.tailored import this_board
from floe.assemble.tailoring import EngineTimer, open_profiler
from floe.cli.main import app
from floe.core import gguf
from floe.core.errors import BadPlan, BadRequest
from floe.tailoring.board import Board
from floe.tailoring.design import Probe, design, grid_of, held_out, probe_depth
from floe.tailoring.gguf_quant import TYPE_IDS
from floe.tailoring.latency_table import LatencyTable, Row
from floe.tailoring.plan import LayerPlan, ModelShape
from floe.tailoring.profile import (
    DeviceProfile,
    Limits,
    Timing,
    check_table,
    profile_rows,
    time_probes,
)
from floe.tailoring.profile_file import read_profile, write_profile
from floe.tailoring.tune import Settings
from floe.testing.tiny_model import TinyModel, make_tiny_model

SHAPE = ModelShape(
    base_digest="tiny", n_layers=6, width=64, n_kv_heads=2, q_per_kv=2, head_width=16, n_ffn=128,
    n_vocab=268, tied_embeddings=False,
)  # fmt: skip
NS = {0: 4.0, 1: 2.0, 8: 1.0, 3: 1.5}  # of a byte's weight, by ggml type


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@dataclass(frozen=True)
class ByTheFile:
    """Says a time that is counted from the file's tensors: the real ones of the probe."""

    prompt_tokens: int = 64

    def __call__(self, path: Path, *, depth_tokens: int | None = None) -> Timing:
        header = gguf.read_header(path)
        ms = 0.5
        for name, info in header.tensors.items():
            if name != "token_embd.weight":
                ms += NS[info.type] * float(np.prod(info.shape)) * 1e-4
        depth = depth_tokens or 70
        kv_heads = header.metadata["deci.attention.head_count_kv"]
        decode_ms = ms + 1e-4 * depth * float(np.sum(kv_heads))
        return Timing(decode_ms=decode_ms, prefill_ms=9 * ms, depth_tokens=depth, energy_mj=2 * ms)


@pytest.fixture(scope="module")
def measured(
    tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LatencyTable, tuple[Row, ...]]:
    told: list[tuple[int, int]] = []
    folder = tmp_path_factory.mktemp("probes")
    table, rows = profile_rows(
        SHAPE, ByTheFile(), base=tiny.gguf, folder=folder, quants=("F16", "Q8_0", "Q4_1"),
        limit_s=0.0, told=lambda *a: told.append(a),
    )  # fmt: skip
    assert told[-1] == (2 * len(rows), 2 * len(rows))
    assert list(folder.iterdir()) == []
    return table, rows


@pytest.fixture
def profile(measured: tuple[LatencyTable, tuple[Row, ...]]) -> DeviceProfile:
    return DeviceProfile(
        table=measured[0], rows=measured[1], settings={"threads": 1, "flash_attention": True},
        limits=Limits(memory_budget_mb=80.0, target_tasks=("chat",)), machine={"cpu": "toy"},
        engine="b1", made_at="now", kv_token_bytes=7,
    )  # fmt: skip


def test_the_table_knows_models_it_never_timed(
    tiny: TinyModel, profile: DeviceProfile, tmp_path: Path
) -> None:
    """`latency_model_mape` on held-out plans, with a machine that has no noise."""
    table = profile.table
    plans = list(held_out(SHAPE, table.grid.quants, n=12, seed=5))
    found = check_table(table, plans, ByTheFile(), base=tiny.gguf, folder=tmp_path, rounds=1)
    assert found["plans"] == 12
    assert found["decode_mape"] < 1e-3 and found["prefill_mape"] < 1e-3
    assert table.energy is not None


def test_held_out_plans_are_legal_and_unlike_each_other() -> None:
    plans = list(held_out(SHAPE, ("F16", "Q8_0"), n=30, seed=1))
    assert len({p.layers for p in plans}) == 30
    for plan in plans:
        assert len(plan.layers) == SHAPE.n_layers
        assert plan.layers[0] == plan.layers[-1] == LayerPlan(n_kv_heads=2, q_per_kv=2, n_ffn=128)
        assert all(p.n_ffn % 32 == 0 and 0 <= p.n_kv_heads <= 2 for p in plan.layers)
    assert any(layer.dropped for p in plans for layer in p.layers)


def test_every_type_is_timed_as_often() -> None:
    grid = grid_of(SHAPE, ("F16", "Q8_0", "Q4_1"), fine=True)
    probes = design(SHAPE, grid, rows_per_quant=5, deep_tokens=99, seed=3)
    mixed = [p for p in probes if not p.whole_vocab and len(p.layers) > 2]
    for group in ("attention", "ffn"):
        counts = {q: sum(p.quants[group] == q for p in mixed) for q in grid.quants}
        assert min(counts.values()) >= 4, (group, counts)
    assert {p.quants["output"] for p in probes if p.whole_vocab} == set(grid.quants)
    assert sum(p.depth_tokens == 99 for p in probes) == 4
    wide = replace(SHAPE, n_layers=80, width=8192, n_ffn=28672, n_kv_heads=8, q_per_kv=8,
                   head_width=128)  # fmt: skip
    assert probe_depth(SHAPE, ("F16",)) == 6 and probe_depth(wide, ("F16",)) == 2


def test_the_quietest_look_counts_and_time_is_kept() -> None:
    probes = [Probe(layers=(LayerPlan(n_kv_heads=1, q_per_kv=1, n_ffn=32),), quants={})] * 3
    order: list[int] = []
    clock = iter(range(1000))

    def look(probe: Probe) -> Row:
        n = len(order)
        order.append(n)
        return Row(
            layers=probe.layers, quants={}, n_vocab=1, depth_tokens=1, decode_ms=10.0 + n % 4,
            prefill_ms=50.0 - n,
        )  # fmt: skip

    rows = time_probes(probes, look, limit_s=10.0, min_rounds=2, clock_s=lambda: next(clock))
    assert len(order) == 16  # two rounds whole, then as long as the clock allows
    assert [row.decode_ms for row in rows] == [10.0, 10.0, 10.0]
    assert min(row.prefill_ms for row in rows) == 35.0


# --- the file ---


def test_a_profile_is_read_back_whole(profile: DeviceProfile, tmp_path: Path) -> None:
    profile = replace(profile, energy="measured", facts={"model": "tiny", "took_s": 1.5})
    path = tmp_path / "device_profile.json"
    digest = write_profile(path, profile)
    again = read_profile(path, here=Board(machine={"cpu": "toy"}, engine="b1"))
    assert again == profile
    data = json.loads(path.read_text())
    assert data["memory_budget_mb"] == 80.0 and data["target_tasks"] == ["chat"]
    assert data["digest"] == digest and len(data["measurements"]) == len(profile.rows)
    data["memory_budget_mb"], data["latency_slo_ms"] = 60.0, 12.5  # the owner's to change
    path.write_text(json.dumps(data))
    limits = read_profile(path, here=None).limits
    assert (limits.memory_budget_mb, limits.latency_slo_ms) == (60.0, 12.5)


def test_another_board_is_refused_unless_told(profile: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profile(path, profile)
    other = Board(machine={"cpu": "A57", "board": "Nano"}, engine="b2")
    with pytest.raises(BadPlan) as caught:
        read_profile(path, here=other)
    said = caught.value.message
    assert "made on another board (board 'unknown', here 'Nano'; cpu 'toy', here 'A57'" in said
    assert "engine 'b1', here 'b2'" in said and "--any-board" in said
    assert read_profile(path, here=other, any_board=True).engine == "b1"


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda p: p.unlink(), "cannot read the device profile .*: No such file"),
        (lambda p: p.write_text("{"), "is no JSON file; make the device profile again"),
        (lambda p: p.write_text("[]"), "is not a device profile"),
        (_edit(lambda d: d.update(kind="tailored model")), "is not a device profile"),
        (_edit(lambda d: d.update(version=2)), "version 2, this Floe reads .* 1 to 1"),
        (_edit(lambda d: d.pop("grid")), "is damaged: a value is missing"),
        (_edit(lambda d: d["table"].update(decode_mape=0.0)), "changed after it was made"),
        (_edit(lambda d: d["measurements"][0].update(decode_ms=1)), "changed after it was made"),
        (_edit(lambda d: d.update(memory_budget_mb="much")), "is damaged .*not a number"),
        (_edit(lambda d: d.update(power_budget_w=-1)), "is damaged .*out of range"),
    ],
)
def test_files_that_are_no_profile(
    profile: DeviceProfile, tmp_path: Path, edit: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "p.json"
    write_profile(path, profile)
    edit(path)
    with pytest.raises(BadPlan, match=words):
        read_profile(path, here=None)


def test_what_is_no_number_is_not_written(profile: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(BadPlan, match="holds a value that is no finite number; measure again"):
        write_profile(path, replace(profile, watts=float("nan")))
    assert not path.exists()


def test_unknown_types_are_refused(tiny: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match="'Q2_K' of group 'ffn' is not one of"):
        profile_rows(SHAPE, ByTheFile(), base=tiny.gguf, folder=tmp_path, quants=("Q2_K",))
    with pytest.raises(BadPlan, match="needs one quantization type or more"):
        profile_rows(SHAPE, ByTheFile(), base=tiny.gguf, folder=tmp_path, quants=())


# --- in the engine ---


def test_the_engine_is_timed(tiny: TinyModel, tmp_path: Path) -> None:
    with open_profiler(str(tiny.gguf), home=tmp_path, threads=1, meter="none") as profiler:
        assert profiler.shape.n_layers == 2 and profiler.shape.n_kv_heads == 2
        assert not profiler.shape.tied_embeddings
        profile = profiler.run(quants=("F32", "Q8_0"), limit_s=0.0, watts=5.0)
    board = this_board()
    assert (profile.machine, profile.engine) == (board.machine, board.engine)
    assert profile.energy == "modelled" and profile.kv_token_bytes == 2 * 2 * 2 * 16 * 2
    assert profile.settings["clock"] == "wall"
    assert all(row.decode_ms > 0 and row.prefill_ms > 0 for row in profile.rows)
    assert {row.n_vocab for row in profile.rows} == {258, 268}
    plan = next(held_out(profiler.shape, ("F32", "Q8_0"), n=1, seed=0))
    cost = profile.costs().cost(plan)
    assert cost.decode_ms > 0 and cost.energy_mj == pytest.approx(5.0 * cost.decode_ms)


def test_cpu_time_is_for_one_thread() -> None:
    with pytest.raises(BadRequest, match="one thread only: add --threads 1"):
        EngineTimer(settings=Settings(threads=2), cpu_time=True)


class HalfWatt:
    """A meter that reads 0.5 mJ for each window."""

    name, label = "toy", "measured"

    def begin(self) -> object:
        return None

    def end(self, mark: object) -> Any:
        from floe.power.base import Window

        return Window(duration_s=1.0, rails=(), energy_j=0.0005, label="measured", counted=())

    def close(self) -> None: ...


def test_a_meter_is_read_where_there_is_one(tiny: TinyModel) -> None:
    timer = EngineTimer(settings=Settings(threads=1), meter=HalfWatt(), decode_tokens=5)
    assert timer(tiny.gguf).energy_mj == pytest.approx(0.1)
    deep = timer(tiny.gguf, depth_tokens=300)
    assert deep.depth_tokens == 300 + 2 + 2


def test_the_command_writes_a_profile(tiny: TinyModel, tmp_path: Path) -> None:
    out = tmp_path / "device_profile.json"
    arguments = [
        "tailor", "profile", "--model", str(tiny.gguf), "--threads", "1", "--quants", "F16,Q8_0",
        "--seconds", "1", "--meter", "none", "--memory-mb", "64", "--task", "chat", "--out",
        str(out), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    profile = read_profile(out, here=this_board())
    assert profile.limits == Limits(memory_budget_mb=64.0, target_tasks=("chat",))
    assert figures["decode_mape"] == profile.table.decode_mape
    assert figures["energy"] == "unknown" and figures["decode_ms_Q8_0"] > 0
    assert set(profile.table.grid.quants) == {"F16", "Q8_0"} <= set(TYPE_IDS)
