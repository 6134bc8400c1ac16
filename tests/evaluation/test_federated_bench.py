"""`floe bench federated`: its parts put together, kept as they come, and asked for by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from floe.core.errors import FloeError, Missing
from floe.evaluation import bench, federated_page, report
from floe.evaluation.federated_bench import PARTS, derived
from floe.evaluation.parts import Part, collect


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Three made-up parts; the one named "broken" fails until it is taken out of the list."""
    done: list[tuple[str, bool]] = []
    for name in ("one", "two", "same"):
        module = ModuleType(f"floe.evaluation.{name}")

        def figures(full: bool, say: Any, name: str = name) -> dict[str, Any]:
            say("works")
            done.append((name, full))
            return {f"{'one' if name == 'same' else name}_figure": len(name)}

        module.figures = figures  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return done


def part(name: str) -> Part:
    return Part(name=name, module=name, function="figures", extra="fed")


def test_figures_of_all_parts_are_one_object(calls: list[tuple[str, bool]]) -> None:
    said: list[str] = []
    found = collect((part("one"), part("two")), full=False, say=said.append)
    assert {"one_figure": 3, "two_figure": 3}.items() <= found.items()
    assert found.keys() == {"one_figure", "two_figure", "one_part_s", "two_part_s"}
    assert "one: works" in said and calls == [("one", False), ("two", False)]


def test_a_stopped_run_goes_on_where_it_ended(
    calls: list[tuple[str, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    parts = (part("one"), part("absent"), part("two"))
    with pytest.raises(ModuleNotFoundError, match=r"floe\.evaluation\.absent"):
        collect(parts, full=True, say=lambda _: None, path=path)
    assert list(json.loads(path.read_text())) == ["one"]
    later = ModuleType("floe.evaluation.absent")
    later.figures = lambda full, say: {"absent_figure": 1}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, later.__name__, later)
    found = collect(parts, full=True, say=lambda _: None, path=path)
    assert calls == [("one", True), ("two", True)]  # the first one was not measured again
    assert found["one_figure"] == 3 and found["absent_figure"] == 1
    path.write_text("{")
    with pytest.raises(FloeError, match="the figures kept so far, is damaged"):
        collect(parts, full=True, say=lambda _: None, path=path)


def test_two_parts_with_one_figure_are_an_error(calls: list[tuple[str, bool]]) -> None:
    with pytest.raises(FloeError, match="two parts of the benchmark give one_figure"):
        collect((part("one"), part("same")), full=False, say=lambda _: None)


def test_a_package_that_lacks_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "floe.evaluation.needy", None)

    def refuse(name: str) -> Any:
        raise ModuleNotFoundError("no flwr", name="flwr")

    monkeypatch.setattr("floe.evaluation.parts.import_module", refuse)
    with pytest.raises(Missing, match=r"part 'needy' needs flwr: .*'floe\[fed\]'"):
        collect((part("needy"),), full=False, say=lambda _: None)


def test_what_is_asked_of_two_figures_together() -> None:
    measured = {"loss_fedavg": 2.0, "loss_local": 1.8, "loss_clustered": 1.5}
    found = derived(measured)
    assert (found["clustered_below_fedavg"], found["clustered_below_local"]) == (0.5, 0.3)
    assert found["padding_above_product"] is None  # not measured is not zero
    assert derived({"padding_error": 0.5, "product_error": 1e-7})["padding_above_product"] == 0.5
    faults = {f"faults_loss_{name}": 1.01 for name, _ in federated_page.SURVIVES}
    assert derived(faults | {"faults_loss_clean": 1.0})["fault_loss_worst"] == pytest.approx(0.01)
    assert derived({"faults_loss_clean": 1.0})["fault_loss_worst"] is None


def test_every_part_is_there() -> None:
    for one in PARTS:
        path = Path(bench.__file__).with_name(f"{one.module}.py")
        assert f"\ndef {one.function}(" in path.read_text(encoding="utf-8"), one.name


def test_the_faults_of_the_page_are_those_that_are_measured() -> None:
    faults = pytest.importorskip("floe.evaluation.federated_faults")
    assert {name for name, _ in federated_page.SURVIVES} == faults.FAULTS.keys()


def test_the_page_is_whole() -> None:
    assert "federated" in bench.BENCHMARKS
    assert report.PAGES["federated"].goals == federated_page.GOALS
    figures = {goal.field: 0.5 for goal in federated_page.GOALS} | {"loss_dp_eps3": 1.0}
    text = report.page("federated", figures, command="floe bench federated")
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert "reached" in text and "missed" in text and "not measured" in text
