"""Power at the HTTP door: a request's own goals, and /metrics that never make joules up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_service import Script, service_of

from floe.core.errors import BadRequest
from floe.core.request import PowerWish, Request
from floe.core.sections import PowerConfig
from floe.power.base import RailEnergy, Window
from floe.power.build import Power
from floe.power.knobs.simulated import NoKnobs
from floe.power.listener import Listener
from floe.power.meters.probe import sensors
from floe.power.sparing import Sparing
from floe.serving.app import build_app
from floe.serving.ask import chat_ask, completion_ask
from floe.serving.local import power_figures
from floe.testing.tiny_model import make_tiny_model


def asked(**floe: Any) -> PowerWish:
    chat = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "floe": floe}
    plain = {"model": "auto", "prompt": "hi", "floe": floe}
    one = chat_ask(chat, request_id="r", default_max_tokens=9).request
    two = completion_ask(plain, request_id="r", default_max_tokens=9).request
    assert one.power == two.power
    return one.power


def test_a_request_may_bring_its_own_goals() -> None:
    assert asked() == asked(latency_slo=None) == PowerWish()
    assert asked(latency_slo=40, power_budget=7.5, dvfs_mode="saver") == PowerWish(
        latency_slo_ms=40.0, power_budget_w=7.5, dvfs_mode="saver"
    )


@pytest.mark.parametrize(
    ("floe", "message"),
    [
        ({"latency_slo": 0}, "floe.latency_slo must be a number from 0.1 to"),
        ({"latency_slo": "40"}, "floe.latency_slo must be a number"),
        ({"power_budget": -1}, "floe.power_budget must be a number from 0.1 to 10000"),
        ({"power_budget": True}, "floe.power_budget must be a number"),
        ({"dvfs_mode": "eco"}, "floe.dvfs_mode must be one of performance, balanced, saver"),
        ({"dvfs_mode": []}, "floe.dvfs_mode must be one of performance, balanced, saver"),
        ({"latency_slo_ms": 4}, 'unknown field "floe.latency_slo_ms": did you mean "floe.latency'),
    ],
)
def test_wrong_goals_are_refused_by_name(floe: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        asked(**floe)


class TenJoules:
    """A meter for which every window costs ten joules."""

    name = "ten"

    def __init__(self, label: Any) -> None:
        self.label = label

    def begin(self) -> object:
        return None

    def end(self, mark: object) -> Window:
        joules = None if self.label == "unknown" else 10.0
        rail = RailEnergy(rail="all", energy_j=joules, label=self.label)
        return Window(
            duration_s=1.0, rails=(rail,), energy_j=joules, label=self.label, counted=("all",)
        )

    def close(self) -> None:
        pass


async def page_of(label: str) -> str:
    config = PowerConfig()
    listener = Listener(config=config, meter=TenJoules(label), knobs=NoKnobs())
    spare = Sparing(config, has_cloud=False, mean_tokens=lambda: 0.0, battery=lambda: None)
    power = Power(listener=listener, spare=spare, info={"meter": "ten", "label": label})
    one = listener.watch(
        Request(id="r", prompt="hi"), prompt_tokens=3, adapters=0, came_s=time.monotonic()
    )
    one.drawn()
    one.drawn()
    one.ended()
    assert listener.settle()
    service = service_of(Script(), figures=lambda: power_figures(power))
    transport = httpx.ASGITransport(app=build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        reply = await client.get("/metrics")
    listener.close()
    assert reply.status_code == 200
    return reply.text


async def test_e13_every_joule_bears_its_label() -> None:
    measured = await page_of("measured")
    assert 'floe_power_request_joules_total{label="measured"} 20.0' in measured
    assert 'floe_power_joules_per_token{label="measured"} 10.0' in measured
    assert 'floe_power_energy_label{label="measured"} 1.0' in measured
    modelled = await page_of("modelled")
    lines = [line for line in modelled.splitlines() if re.match(r"floe_\w*joules", line)]
    assert lines and all('label="modelled"' in line for line in lines)


async def test_e11_what_is_unknown_has_no_joules_at_all() -> None:
    page = await page_of("unknown")
    assert not re.search(r"^floe_\w*joules", page, re.MULTILINE)
    assert 'floe_power_energy_label{label="unknown"} 1.0' in page
    assert 'floe_power_requests_total{label="unknown"} 1.0' in page


def test_an_edge_without_power_tells_nothing() -> None:
    assert power_figures(None) == ()


@pytest.fixture(scope="module", params=["auto", "none"])
def server(
    request: pytest.FixtureRequest, models_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """`floe serve` in its own process, with a controller that only gives advice."""
    if request.param == "auto" and any(s.usable for s in sensors()):
        pytest.skip("this machine has sensors: its joules are known")
    folder = tmp_path_factory.mktemp("power")
    tiny = make_tiny_model(folder)
    (folder / "floe.toml").write_text(
        f'[model]\nname = "{tiny.gguf}"\nthreads = 1\ncontext_tokens = 256\n'
        '[adapters]\nshipped = false\n[privacy]\nner = "off"\nledger = false\n'
        f'[power]\nmeter = "{request.param}"\ncontroller = "learned"\nboard = "orin-nano-super"\n'
        "ttft_slo_ms = 60000\ntpot_slo_ms = 0.001\n"
    )
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "floe", "serve", "--config", "floe.toml", "--port", "0"],
            cwd=folder,
            stderr=output,
            stdout=output,
            env={**os.environ, "FLOE_HOME": str(models_home)},
        )
    try:
        yield _announced(process, log), request.param
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (0, 130), log.read_text()


def _announced(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := re.search(r"serving on (http://\S+)/v1", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def test_e11_a_server_without_sensors_says_unknown_and_never_a_number(
    server: tuple[str, str],
) -> None:
    url, _ = server
    ask = {"model": "auto", "prompt": "the thing", "max_tokens": 12, "floe": {"latency_slo": 0.1}}
    for _ in range(2):
        reply = httpx.post(f"{url}/v1/completions", json=ask, timeout=60)
        assert reply.status_code == 200, reply.text
    refused = httpx.post(f"{url}/v1/completions", json=ask | {"floe": {"dvfs_mode": "x"}})
    assert refused.status_code == 400
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:  # the books are a moment behind the answer
        page = httpx.get(f"{url}/metrics").text
        if 'floe_power_requests_total{label="unknown"} 2.0' in page:
            break
    series = dict(re.findall(r"^(floe_power_\S+) (\S+)$", page, re.MULTILINE))
    assert not any("joules" in name for name in series)
    assert series['floe_power_requests_total{label="unknown"}'] == "2.0"
    assert series['floe_power_energy_label{label="unknown"}'] == "1.0"
    assert series['floe_power_slo_requests_total{goal="tpot"}'] == "2.0"
    assert series['floe_power_slo_violations_total{goal="ttft"}'] == "0.0"
    assert float(series["floe_power_decisions_total"]) >= 4
    assert series["floe_power_switches_total"] == series["floe_power_failures_total"] == "0.0"
    assert float(series['floe_power_step_milliseconds{phase="decode"}']) > 0
    assert 'controller="learned",knobs="noop",label="unknown",meter="none"' in page
