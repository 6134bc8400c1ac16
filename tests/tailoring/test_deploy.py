"""The verb that builds: its order, its refusals, and a folder that is there whole or not at all."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_parts import BOARD, order_of, stub_parts
from tailoring_worlds import World

from floe.core.errors import BadConfig, BadModel, BadPlan, Busy, FloeError
from floe.deploy import Carried, Order, deploy
from floe.tailoring.base import Budgets, Cost
from floe.tailoring.logit_check import LogitCheck
from floe.tailoring.manifest import read_manifest
from floe.tailoring.plan_file import read_plan
from floe.tailoring.shapes import whole_plan
from floe.tailoring.whole_folder import whole_folder

SHAPE = World().shape


def _refused(tmp_path: Path, parts: Any, order: Order, kind: type[FloeError]) -> str:
    with pytest.raises(kind) as caught:
        deploy(order, tmp_path / "out", parts)
    assert list(tmp_path.iterdir()) == []
    return caught.value.message


def test_what_is_built_lies_in_one_folder_with_all_that_serving_takes(tmp_path: Path) -> None:
    said: list[str] = []
    order = order_of(SHAPE, adapters=("maths",), quants={"ffn": "Q8_0"})
    built = deploy(
        order, tmp_path / "out", stub_parts(SHAPE), told=lambda text, _: said.append(text)
    )
    found = read_manifest(tmp_path / "out" / "manifest.json", here=BOARD)
    assert found == built.manifest
    assert found.adapters == ("maths",) and found.adapters_folder == "adapters"
    assert (found.perplexity_before, found.perplexity_after) == (20.0, 30.0)
    assert found.plan.quants == {"ffn": "Q8_0"}
    assert read_plan(tmp_path / "out" / "plan.json").plan == found.plan
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert said.index("pruning") < said.index("comparing both forms") < said.index("measuring")


def test_the_plans_types_win_over_the_orders_and_a_missing_plan_is_searched(tmp_path: Path) -> None:
    order = order_of(SHAPE, quants={"ffn": "Q8_0", "attention": "F16"})
    assert order.plan is not None
    file = dataclasses.replace(
        order.plan, plan=dataclasses.replace(order.plan.plan, quants={"ffn": "Q4_1"})
    )
    parts = dataclasses.replace(stub_parts(SHAPE), find_plan=lambda _told: file)
    built = deploy(dataclasses.replace(order, plan=None), tmp_path / "out", parts)
    assert built.manifest.plan.quants == {"ffn": "Q4_1", "attention": "F16"}


def test_only_the_index_map_stays_where_the_folder_is_not_wanted(tmp_path: Path) -> None:
    deploy(order_of(SHAPE, keep_hf=False), tmp_path / "out", stub_parts(SHAPE))
    assert [p.name for p in (tmp_path / "out" / "hf").iterdir()] == ["floe_cut.json"]


def test_d05_a_model_that_lost_too_much_is_refused_unless_forced(tmp_path: Path) -> None:
    parts = stub_parts(SHAPE, after=41.0)
    said = _refused(tmp_path, parts, order_of(SHAPE), BadPlan)
    assert "from 20.0 to 41.0, more than 2 times" in said and "--force" in said
    nan = stub_parts(SHAPE, after=float("nan"))
    assert "nothing was written" in _refused(tmp_path, nan, order_of(SHAPE), BadPlan)
    deploy(order_of(SHAPE, force=True), tmp_path / "out", parts)
    with pytest.raises(BadConfig, match="at least 1 times"):
        order_of(SHAPE, max_ratio=0.5)


def test_d10_a_model_of_other_sizes_than_the_plans_is_refused(tmp_path: Path) -> None:
    order = order_of(SHAPE)
    assert order.plan is not None
    layers = (dataclasses.replace(order.plan.plan.layers[0], n_ffn=32), *order.plan.plan.layers[1:])
    other = dataclasses.replace(order.plan.plan, layers=layers)
    wrong = dataclasses.replace(order, plan=dataclasses.replace(order.plan, plan=other))
    parts = dataclasses.replace(stub_parts(SHAPE), prune=lambda _: stub_parts(SHAPE).prune(
        whole_plan(SHAPE)))  # fmt: skip
    assert "the plan asks for" in _refused(tmp_path, parts, wrong, BadPlan)


def test_d13_forms_that_differ_are_refused(tmp_path: Path) -> None:
    bad = LogitCheck(is_ok=False, max_error=0.5, greedy_same=3, greedy_tokens=8, tolerance=0.01)
    parts = dataclasses.replace(stub_parts(SHAPE), check_logits=lambda *_: bad)
    assert "3 of 8 greedy tokens" in _refused(tmp_path, parts, order_of(SHAPE), BadModel)


def test_d16_bytes_over_the_budget_are_refused(tmp_path: Path) -> None:
    order = order_of(SHAPE)
    assert order.plan is not None
    tight = dataclasses.replace(order.plan, budgets=Budgets(memory_bytes=99, decode_ms=0.1))
    parts = dataclasses.replace(
        stub_parts(SHAPE),
        measure=lambda *_: Cost(prefill_ms=1.0, decode_ms=9.0, memory_bytes=100, source="measured"),
    )
    said = _refused(tmp_path, parts, dataclasses.replace(order, plan=tight), BadPlan)
    assert "memory_bytes 100 is above 99" in said and "decode" not in said


def test_an_adapters_figures_are_in_the_manifest(tmp_path: Path) -> None:
    one = Carried(name="maths", modules=3, modules_before=4, max_error=0.001)
    parts = dataclasses.replace(stub_parts(SHAPE), carry=lambda *_: (one,))
    facts = deploy(order_of(SHAPE), tmp_path / "out", parts).manifest.facts
    assert facts["adapter_maths_modules"] == 3 and facts["adapter_maths_error"] == 0.001


def test_a_killed_build_leaves_nothing_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import dataclasses, os, pathlib, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from deploy_parts import order_of, stub_parts\n"
        "from tailoring_worlds import World\n"
        "from floe.deploy import deploy\n"
        "shape = World().shape\n"
        "def kill(*_):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "parts = dataclasses.replace(stub_parts(shape), try_file=kill)\n"
        "deploy(order_of(shape), pathlib.Path(sys.argv[1]), parts)\n"
    )
    place = tmp_path / "place"
    done = subprocess.run([sys.executable, str(script), str(place / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [p.name for p in place.iterdir()] == [".out.building"]
    deploy(order_of(SHAPE), place / "out", stub_parts(SHAPE))
    assert [p.name for p in place.iterdir()] == ["out"]


def test_a_folder_that_is_there_or_is_being_built_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with whole_folder(target) as work:
        (work / "file").write_text("x")
        with pytest.raises(Busy, match="another process is building"), whole_folder(target):
            pass
    assert (target / "file").read_text() == "x"
    with pytest.raises(BadPlan, match="exists; give a new folder"), whole_folder(target):
        pass
    with pytest.raises(FloeError, match="cannot write beside"), whole_folder(target / "file" / "a"):
        pass
    with pytest.raises(FloeError, match="Nothing is left behind"), whole_folder(tmp_path / "b"):
        raise OSError(28, "No space left on device")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
