"""The paging benchmark's arithmetic, its requests and its slowed reads; the servers are real."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floe.core.config import load_config
from floe.core.errors import FloeError, Missing
from floe.evaluation import paging_bench as paging
from floe.evaluation import slow_reads
from floe.evaluation.paging_bench import Measured, Phase, Plan
from floe.evaluation.paging_clients import Got, Wanted, ask_all, cache_figures
from floe.evaluation.paging_fleet import write_adapter
from floe.evaluation.paging_topics import TOPICS, prompts_of
from floe.evaluation.report import PAGES

PLAN = Plan(
    phases=(
        Phase(name="named", routed=False, read_mb_s=4.0, requests=20),
        Phase(name="", routed=True, read_mb_s=4.0, requests=20),
    ),
    warmup=4,
    stretches=2,
    rate_s=10.0,
)
NAMES = [f"{field}-{word}" for field, word in TOPICS[:64]]


def test_topics_are_many_and_different() -> None:
    assert len(set(TOPICS)) == 65
    assert len({prompt for i in range(65) for prompt in prompts_of(i)}) == 65 * 6
    assert {field for field, _ in TOPICS[:5]} == {"maths", "code", "medicine", "law", "finance"}


def test_requests_follow_the_trace_and_are_the_same_every_time() -> None:
    named, routed = (paging.requests_of(phase, PLAN, NAMES, seed=7) for phase in PLAN.phases)
    assert named == paging.requests_of(PLAN.phases[0], PLAN, NAMES, seed=7)
    assert len(named) == 24
    assert {w.model for w in routed} == {"auto"}
    assert [w.model for w in named] == [w.adapter for w in named]
    assert [w.prompt for w in named] == [w.prompt for w in routed]
    for wanted in named:
        assert wanted.prompt in prompts_of(NAMES.index(wanted.adapter))
    due_s = [w.at_s for w in named]
    assert due_s == sorted(due_s)
    assert due_s[-1] == pytest.approx(2.4)


def test_every_adapter_has_a_part_in_the_trace() -> None:
    at_s, key = paging.arrivals(64, seed=7)
    assert np.all(np.diff(at_s) >= 0)
    assert len(set(key.tolist())) > 25
    assert max(key) > 43


def test_both_sides_can_be_configured(tmp_path: Path) -> None:
    found = {}
    for side in paging.SIDES:
        path = tmp_path / f"{side}.toml"
        path.write_text(paging.config_text(side, 5_000))
        found[side] = load_config(path)
    ours, plain = found["floe"], found["lru"]
    assert (ours.adapters.policy, plain.adapters.policy) == ("learned", "lru")
    assert (ours.adapters.prefetch, plain.adapters.prefetch) == ("both", "off")
    assert (ours.routing.learner, plain.routing.learner) == ("bandit", "gate")
    assert ours.adapters.budget_bytes == plain.adapters.budget_bytes == 5_000
    assert ours.adapters.host_bytes == plain.adapters.host_bytes == 0


def test_figures_are_of_one_phase_with_errors_counted() -> None:
    def side(*ttfts_s: float | None, hits: float) -> Measured:
        got = tuple(Got(ttft_s=t, total_s=1, tokens=2, adapter="law-wills") for t in ttfts_s)
        asked = ("law-bail", "code-dates", "law-wills")
        counted = {
            "hits_total": hits,
            "misses_total": 1.0,
            "loads_total": 2.0,
            "load_ms_total": 9.0,
        }
        return Measured(got=got, asked=asked, counted=counted)

    measured = {"floe": side(0.1, 0.1, None, hits=3), "lru": side(0.2, 0.2, 0.2, hits=1)}
    out = paging.phase_figures(PLAN.phases[0], measured, PLAN)
    assert out["named_ttft_p95_ratio_lru"] == pytest.approx(0.5)
    assert out["named_floe_ttft_p50_ms"] == pytest.approx(100)
    assert (out["named_floe_errors"], out["named_lru_errors"]) == (1, 0)
    assert (out["named_floe_hit_rate"], out["named_lru_hit_rate"]) == (0.75, 0.5)
    assert out["named_floe_same_field"] == pytest.approx(0.5)
    assert out["named_floe_same_topic"] == 0.0
    assert out["named_lru_same_topic"] == pytest.approx(1 / 3)
    assert out["named_floe_load_ms"] == 4.5
    assert out["named_lru_same_field"] == pytest.approx(2 / 3)
    assert paging.goal_figures(out) == {"errors": 1, "requests": 40}
    empty = Measured(got=(), asked=(), counted={})
    nothing = paging.phase_figures(PLAN.phases[1], {"floe": empty, "lru": empty}, PLAN)
    assert nothing["ttft_p95_ratio_lru"] is None
    assert nothing["floe_hit_rate"] is None
    assert {goal.field for goal in PAGES["paging"].goals} <= {*nothing, "errors"}


def test_an_adapters_place_is_near_its_fields_and_nearest_its_own_topic(tmp_path: Path) -> None:
    class Words:
        digest = "words"

        def __call__(self, text: str) -> Any:
            vector = np.zeros(256, dtype=np.float32)
            for word in text.lower().strip(".").split():
                vector[sum(map(ord, word)) % 256] += 1
            return vector / np.linalg.norm(vector)

    places = {}
    for topic in (3, 8, 4):
        folder = write_adapter(tmp_path / str(topic), topic, seed=7, embedding=Words())
        place = json.loads((folder / "centroid.json").read_text())
        places[topic] = np.array(place["vector"])
        assert np.linalg.norm(places[topic]) == pytest.approx(1, abs=1e-5)
    assert 0.8 < places[3] @ places[8] < 0.9999  # both law
    assert places[3] @ places[4] < places[3] @ places[8]  # finance is farther
    asked = Words()(prompts_of(3)[0])
    assert asked @ places[3] > asked @ places[8]


def test_a_fleet_that_cannot_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], returncode=3, stdout="")

    monkeypatch.setattr("floe.evaluation.paging_bench.subprocess.run", failed)
    with pytest.raises(FloeError, match="making the adapters ended with code 3"):
        paging.make_fleet(tmp_path)
    monkeypatch.setattr("floe.evaluation.paging_fleet.shipped", lambda: iter(()))
    with pytest.raises(Missing, match="the shipped adapter 'maths' is not there"):
        write_adapter(tmp_path / "a", 0, seed=7)


def test_slow_reads_take_what_the_pace_says() -> None:
    assert slow_reads.wait_s("4 30", 2_000_000) == pytest.approx(0.53)
    assert slow_reads.wait_s("0 30", 2_000_000) == 0.0


def test_an_adapter_of_the_fleet_is_its_fields_a_little_changed(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    from floe.adapters.source import shipped

    folder = write_adapter(tmp_path / "a", 3, seed=7)
    again = write_adapter(tmp_path / "b", 3, seed=7)
    other = write_adapter(tmp_path / "c", 8, seed=7)
    assert (TOPICS[3][0], TOPICS[8][0]) == ("law", "law")
    real = load_file(next(f for f in shipped() if f.name == "law") / "adapter_model.safetensors")
    one, same, two = (load_file(f / "adapter_model.safetensors") for f in (folder, again, other))
    for name, weight in real.items():
        assert one[name].dtype == weight.dtype
        assert np.array_equal(one[name], same[name])
        assert not np.array_equal(one[name], two[name])
        off = np.abs(one[name].astype(np.float64) - weight) / (np.abs(weight) + 1e-6)
        assert np.median(off) < 0.05


class Answers(BaseHTTPRequestHandler):
    """Streams one token, or refuses a prompt that says so."""

    seen: list[tuple[str, int]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((body["model"], threading.get_ident()))
        self.send_response(503 if body["prompt"] == "refuse" else 200)
        self.end_headers()
        chunks: list[dict[str, Any]] = [
            {"choices": [{"text": "a"}]},
            {"choices": [], "usage": {"completion_tokens": 2},
             "floe": {"route": {"adapters": [{"id": "law-wills"}]}}},
        ]  # fmt: skip
        if body["prompt"] == "break":
            chunks = [{"error": {"message": "broken"}}]
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        lines = ("floe_adapter_hits_total 3.0", 'floe_tokens_total{origin="edge"} 2.0')
        self.wfile.write(("\n".join(lines) + "\n").encode() if self.seen else b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Handler", (Answers,), {"seen": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", handler
    http.shutdown()
    http.server_close()


def wanted(model: str, prompt: str = "go", at_s: float = 0.0) -> Wanted:
    return Wanted(at_s=at_s, model=model, prompt=prompt, max_tokens=2, adapter=model)


def test_clients_send_each_request_once_and_keep_the_order(
    server: tuple[str, type[Answers]],
) -> None:
    url, handler = server
    asks = [wanted(f"m{i}") for i in range(7)]
    asks += [wanted("no", "refuse"), wanted("cut", "break")]
    got = ask_all(url, asks, clients=4)
    assert sorted(model for model, _ in handler.seen) == sorted(a.model for a in asks)
    assert [g.error for g in got[:7]] == [""] * 7
    assert all(g.ttft_s is not None and g.ttft_s <= g.total_s for g in got[:7])
    assert {(g.tokens, g.adapter) for g in got[:7]} == {(2, "law-wills")}
    assert (got[7].ttft_s, got[7].error) == (None, "status 503")
    assert (got[8].ttft_s, "broken" in got[8].error) == (None, True)
    gone = ask_all("http://127.0.0.1:9", [wanted("x")], clients=1)
    assert (gone[0].ttft_s, gone[0].error) == (None, "ConnectionRefusedError")


def test_the_caches_figures_are_read_without_labels(server: tuple[str, type[Answers]]) -> None:
    url, _ = server
    with pytest.raises(FloeError, match="has no figures of the adapter cache"):
        cache_figures(url)
    ask_all(url, [wanted("m")], clients=1)
    assert cache_figures(url) == {"hits_total": 3.0}
