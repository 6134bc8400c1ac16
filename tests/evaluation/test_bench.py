"""The benchmark's arithmetic and form on fakes, and one untimed run of each worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from floe.core.errors import FloeError, NotFound
from floe.evaluation import bench, decode, mixed, report
from floe.evaluation.decode import Measured, Plan, decode_figures, difference, paired, ratio
from floe.evaluation.mixed import Mixed, Pair, mixed_figures
from floe.evaluation.processes import worker
from floe.evaluation.streams import FloeServer, PeerServer, Streamed
from floe.testing.tiny_model import TinyModel, make_tiny_model

REQUIRED = {
    *("ratio_decode", "ratio_prefill", "switch_ms", "ttft_ratio_mixed", "throughput_ratio_mixed"),
    *("rss_overhead_mb", "help_cpu_s", "ready_cpu_s", "floe_decode_tokens_s"),
    *("bare_decode_tokens_s", "floe_prefill_tokens_s", "bare_prefill_tokens_s"),
    *("decode_rounds", "prefill_rounds", "mixed_repeats", "ready_repeats"),
    *("cpu", "cores", "memory_gb", "load_average_before", "load_average_after"),
    *("floe_version", "python_version", "llama_cpp_build", "xllamacpp_version", "commit"),
    *("model", "threads", "form", "seed", "made_at", "benchmark"),
}
PLAN = Plan(
    decode_rounds=3, decode_tokens=4, prompt_tokens=8, prefill_rounds=2, prefill_tokens=16,
    switches=1,
)  # fmt: skip


def _streamed(*, began: float, first: float, last: float, n: int) -> Streamed:
    return Streamed(
        began_s=began, text_s=(first, (first + last) / 2, last), ended_s=last, n_tokens=n,
        n_prompt_tokens=9,
    )  # fmt: skip


def _mixed() -> Mixed:
    a = _streamed(began=0.0, first=0.5, last=2.0, n=10)
    fast = Pair(a=a, b=_streamed(began=1.0, first=1.25, last=2.5, n=10))
    slow = Pair(a=a, b=_streamed(began=1.0, first=2.0, last=4.0, n=10))
    runs = {"floe": [fast], "llama_server": [slow]}
    return Mixed(runs=runs, ready_cpu_s=[1.0], adapters="x,y", n_tokens=10)


def _measured() -> Measured:
    out = Measured()
    out.decode = {"bare": [100, 50, 80], "floe": [90, 50, 60], "floe_async": [95, 40, 80]}
    out.prefill = {"bare": [200, 100], "floe": [150, 125]}
    out.memory = {
        "bare": {"rss_mb": 200.0, "pss_mb": None, "gomp_spincount": "300000"},
        "floe": {"rss_mb": 230.5, "pss_mb": 90.0, "torch": False, "llama_build": "b1"},
    }
    out.switch = {"first_s": [0.012, 0.014, 0.013], "steady_s": [0.01, 0.01]}
    return out


def test_ratios_are_medians_within_rounds() -> None:
    figures = decode_figures(_measured(), PLAN)
    assert figures["ratio_decode"] == pytest.approx(0.9)
    assert figures["ratio_decode_async"] == pytest.approx(0.95)
    assert figures["ratio_prefill"] == pytest.approx((0.75 + 1.25) / 2)
    assert figures["floe_decode_tokens_s"] == 60
    assert figures["rss_overhead_mb"] == pytest.approx(30.5)
    assert figures["switch_ms"] == pytest.approx(3.0)


def test_what_was_not_measured_is_none() -> None:
    measured = _measured()
    assert decode_figures(measured, PLAN)["pss_overhead_mb"] is None
    assert decode_figures(measured, PLAN)["switch_rebind_ms"] is None
    nothing = {**decode_figures(Measured(), PLAN), **mixed_figures(Mixed())}
    asked = ("decode_tokens", "decode_prompt_tokens", "prefill_tokens")
    assert {k for k, v in nothing.items() if v is not None} == set(asked)
    assert paired([], []) is None
    assert ratio(1.0, None) is ratio(None, 1.0) is ratio(1.0, 0.0) is None
    assert difference(None, 1.0) is None


def test_rounds_must_match() -> None:
    with pytest.raises(ValueError, match="longer"):
        paired([1.0], [1.0, 2.0])


def test_mixed_streams() -> None:
    figures = mixed_figures(_mixed())
    assert figures["floe_ttft_second_ms"] == pytest.approx(250)
    assert figures["ttft_ratio_mixed"] == pytest.approx(0.25)
    assert figures["throughput_ratio_mixed"] == pytest.approx((20 / 2.5) / (20 / 4.0))
    assert figures["floe_longest_gap_first_ms"] == pytest.approx(750)


def test_both_servers_are_asked_for_the_same() -> None:
    ours, theirs = FloeServer("u", ["x", "y"]), PeerServer("u", 2)
    path, body = ours.request("p", 1, 7)
    assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "y", 7)
    path, body = theirs.request("p", 1, 7)
    assert (path, body["n_predict"]) == ("/completion", 7)
    assert body["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    assert ours.read({"choices": [{"text": "a"}], "usage": None}) == ("a", None, None)
    usage = {"completion_tokens": 3, "prompt_tokens": 2}
    assert ours.read({"choices": [], "usage": usage}) == ("", 3, 2)
    assert theirs.read({"content": "a", "tokens_predicted": 1}) == ("a", None, None)
    end = {"content": "", "stop": True, "tokens_predicted": 3, "tokens_evaluated": 2}
    assert theirs.read(end) == ("", 3, 2)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`floe bench decode` with nothing measured for real."""

    class Pulled:
        name, digest = "m", "d"
        files: dict[str, Path] = {"model": Path("m.gguf")}  # noqa: RUF012

    @contextmanager
    def scratch(_: int) -> Iterator[tuple[Path, Path]]:
        yield Path(), Path()

    monkeypatch.setattr(bench, "model_files", lambda *_, **__: Pulled)
    monkeypatch.setattr(bench, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(bench, "_scratch_home", scratch)
    monkeypatch.setattr(bench, "_starts_cpu_s", lambda *_: [2.0, 3.0])
    monkeypatch.setattr(bench, "_help_cpu_s", lambda _: [0.1, 0.3, 0.2])
    monkeypatch.setattr(mixed, "prepare_adapters", lambda *_: {"names": [], "files": []})
    monkeypatch.setattr(decode, "measure_decode", lambda **_: _measured())
    monkeypatch.setattr(mixed, "measure_mixed", lambda **_: _mixed())
    monkeypatch.setattr(bench, "load_average", lambda: 3.5)
    said: list[str] = []
    out = bench.run_benchmark("decode", say=said.append)
    assert "the load average is 3.5" in said[0]
    return out


def test_the_object_is_flat_and_whole(figures: dict[str, Any]) -> None:
    assert set(figures) >= REQUIRED
    assert all(v is None or isinstance(v, str | int | float) for v in figures.values())
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures["ready_cpu_s"] == 2.0
    assert figures["help_cpu_s"] == 0.2
    assert figures["form"] == "quick"
    assert figures["llama_cpp_build"] == "b1"


def test_every_goal_and_bar_names_a_field(figures: dict[str, Any]) -> None:
    assert {g.field for g in report.PAGES["decode"].goals} <= set(figures)
    assert {key for c in report.PAGES["decode"].charts for _, key in c.bars} <= set(figures)


def test_an_unknown_benchmark_is_told_the_nearest() -> None:
    with pytest.raises(NotFound, match='did you mean "decode"'):
        bench.run_benchmark("decoed")
    with pytest.raises(NotFound, match="known: decode"):
        bench.run_benchmark("zzz")


def test_the_page_is_well_formed_and_stands_alone(figures: dict[str, Any], tmp_path: Path) -> None:
    figures |= {"cpu": "<b>&\"'", "floe_rss_mb": None}
    path = report.write_page("decode", figures, tmp_path / "new")
    text = path.read_text()
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    words = " ".join(root.itertext())
    assert "<b>&\"'" in words
    assert "floe bench decode" in words
    assert "not measured" in words
    links = text.replace("http://www.w3.org/1999/xhtml", "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert not any(mark in links for mark in ("http", "src=", "href=", "url(", "@import"))
    bars = root.iter("{http://www.w3.org/2000/svg}rect")
    widths = [int(b.attrib["width"]) for b in bars]
    assert max(widths) == 360
    assert 0 in widths


def test_the_table_says_what_is_reached(
    figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report.print_figures({**figures, "ratio_decode": None, "ratio_prefill": 0.5})
    out = capsys.readouterr().out
    assert "reached" in out
    assert "missed" in out
    assert "not measured" in out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_the_workers_do_the_same_work(tiny: TinyModel) -> None:
    """Real processes, a few tokens; nothing is said of their speed."""
    said: list[str] = []
    plan = Plan(
        decode_rounds=2, decode_tokens=3, prompt_tokens=4, prefill_rounds=2, prefill_tokens=8,
        switches=1,
    )  # fmt: skip
    measured = decode.measure_decode(
        model=tiny.gguf, adapters=(), threads=1, plan=plan, seed=1, say=said.append
    )
    assert [len(v) for v in measured.decode.values()] == [2, 2, 2]
    assert [len(v) for v in measured.prefill.values()] == [2, 2]
    assert all(x > 0 for v in measured.decode.values() for x in v)
    assert measured.memory["floe"]["torch"] is False
    assert measured.memory["bare"]["gomp_spincount"] != measured.memory["floe"]["gomp_spincount"]
    assert measured.switch is None
    assert len(said) == 2


def test_a_workers_failure_has_its_reason(tiny: TinyModel) -> None:
    arguments = ["bare", str(tiny.gguf), "--threads", "1", "--context-tokens", "256"]
    with worker(decode.MODULE, arguments, bare=True) as process:
        with pytest.raises(FloeError, match="decode failed: llama"):
            process.ask("decode", prompt=[1] * 250, n_tokens=10)
        with pytest.raises(FloeError, match="a measured process ended with code 1 at 'nonsense'"):
            process.ask("nonsense")
