"""The whole edge on the tiny model, over HTTP: memory for adapters, prefixes, tenants, figures."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from floe.assemble import Edge, edge
from floe.core.config import Config, Secrets
from floe.core.route import Route, Share
from floe.core.sections import AdaptersConfig, ModelConfig, PrivacyConfig, ServeConfig, TenantConfig
from floe.serving.app import build_app
from floe.serving.local import service_of
from floe.serving.usage_log import USAGE
from floe.testing.tiny_model import make_tiny_adapter, make_tiny_model

TEXT = "the thing in the thing on the ring. " * 3
NAMES = ("one", "two", "three")


class World:
    """An edge, its app and a client."""

    def __init__(self, device: Edge, secrets: Secrets, size: int) -> None:
        self.edge, self.size = device, size
        self._app = build_app(service_of(device, secrets))

    def client(self, key: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self._app),
            base_url="http://localhost",
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=60,
        )

    def share(self, name: str) -> Route:
        stored = self.edge.store.get(name)
        share = Share(name=name, digest=stored.manifest.digest, weight=1.0)
        return Route(shares=(share,), how="explicit")


Open = Callable[..., World]


@pytest.fixture
def opened(models_home: Path, tmp_path: Path) -> Iterator[Open]:
    """Opens an edge whose memory holds `slots` adapters of the size of all."""
    tiny = make_tiny_model(tmp_path / "tiny")
    with ExitStack() as stack:

        def open_(*, slots: int, secrets: Secrets | None = None, **changes: Any) -> World:
            config = Config(
                model=ModelConfig(name=str(tiny.gguf), threads=1, context_tokens=256),
                adapters=AdaptersConfig(folder=str(tmp_path / "store"), shipped=False),
                privacy=PrivacyConfig(ner="off", ledger=False),
                **changes,
            )
            with edge(config, Secrets(), home=models_home) as measuring:
                for i, name in enumerate(NAMES):
                    folder = make_tiny_adapter(tmp_path / name, seed=i)
                    measuring.store.add(folder, name=name, any_base=True)
                size = max(s.manifest.file_bytes for s in measuring.store.list())
            room = dataclasses.replace(config.adapters, budget_bytes=slots * size)
            config = dataclasses.replace(config, adapters=room)
            keys = secrets or Secrets()
            return World(stack.enter_context(edge(config, keys, home=models_home)), keys, size)

        yield open_


async def ask(client: httpx.AsyncClient, model: str, prompt: str = TEXT) -> httpx.Response:
    body = {"model": model, "prompt": prompt, "max_tokens": 3}
    return await client.post("/v1/completions", json=body)


async def figures(client: httpx.AsyncClient) -> dict[Any, float]:
    page = (await client.get("/metrics")).text
    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


async def test_a28_resident_pinned_and_active_are_apart_and_loads_have_a_histogram(
    opened: Open,
) -> None:
    world = opened(slots=2)
    async with world.client() as client:
        for name in ("one", "two", "one", "three", "one"):
            assert (await ask(client, name)).status_code == 200
        idle = await figures(client)
        async with world.edge.cache.lease(world.share("one")):
            busy = await figures(client)
    one = ("floe_adapter_resident",)
    assert idle[one] == busy[one] == 2  # resident without any traffic
    assert (idle["floe_adapter_active",], busy["floe_adapter_active",]) == (0, 1)
    assert idle["floe_adapter_pinned",] == 0
    assert idle["floe_adapter_budget_bytes",] == 2 * world.size
    assert idle["floe_adapter_misses_total",] >= 3
    assert idle["floe_adapter_hits_total",] >= 1
    assert idle["floe_adapter_evictions_total",] >= 1
    for name in ("reloads", "prefetches", "prefetch_used", "prefetch_wasted"):
        assert (f"floe_adapter_{name}_total",) in idle
    assert ("floe_adapter_reloads_per_min",) in idle
    assert idle["floe_adapter_load_seconds_count",] == idle["floe_adapter_misses_total",]
    assert idle["floe_adapter_load_seconds_sum",] > 0
    buckets = [v for k, v in idle.items() if k[0] == "floe_adapter_load_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == idle["floe_adapter_load_seconds_count",]


async def test_a26_the_base_needs_no_room_and_a_full_memory_says_why(opened: Open) -> None:
    world = opened(slots=2)
    async with world.client() as client, world.edge.cache.lease(world.share("one")):
        base, other = await asyncio.gather(ask(client, "tiny-llama"), ask(client, "two"))
        assert (base.status_code, other.status_code) == (200, 200)
        assert (await ask(client, "three")).status_code == 200  # "two" is idle and goes
        async with world.edge.cache.lease(world.share("three")):
            assert (await ask(client, "tiny-llama")).status_code == 200
            body = {"model": "two", "prompt": TEXT, "max_tokens": 3, "floe": {"deadline_ms": 200}}
            refused = await client.post("/v1/completions", json=body)
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    world.edge.cache.check_integrity()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../one", "one\0", "ONE "])
async def test_a29_a_name_is_no_path(opened: Open, name: str) -> None:
    world = opened(slots=1)
    async with world.client() as client:
        assert (await ask(client, name)).status_code == 404
        body = {"model": "auto", "prompt": TEXT, "lora": [{"id": name, "scale": 1}]}
        assert (await client.post("/v1/completions", json=body)).status_code == 404
    assert world.edge.cache.counters().misses == 0


async def test_a68_more_adapters_than_fit_and_the_base_at_one_moment(opened: Open) -> None:
    world = opened(slots=1)
    async with world.client() as client:
        names = ["one", "two", "three", "tiny-llama"] * 3
        answers = await asyncio.gather(*(ask(client, name) for name in names))
        assert {answer.status_code for answer in answers} <= {200, 503}
        of_base = answers[3::4]
        assert {answer.status_code for answer in of_base} == {200}
        for name in ("one", "two", "three", "tiny-llama"):
            assert (await ask(client, name)).status_code == 200  # nothing died of it
    world.edge.cache.check_integrity()


async def test_a70_a73_a_prefix_is_reused_under_its_own_adapter_only_and_counted_by_it(
    opened: Open,
) -> None:
    world = opened(slots=3)
    texts: dict[str, set[str]] = {}
    async with world.client() as client:
        for name in ("tiny-llama", "one", "two", "one", "tiny-llama", "two"):
            answer = (await ask(client, name)).json()
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            prompt = answer["usage"]["prompt_tokens"]
            again = name in texts
            assert (cached > 0) is again, name
            assert cached < prompt  # the last token is always read again
            texts.setdefault(name, set()).add(answer["choices"][0]["text"])
        found = await figures(client)
    assert all(len(said) == 1 for said in texts.values())
    assert len(set.union(*texts.values())) == 3
    for label in ("base", "one", "two"):
        looked_up = found["floe_prefix_cache_prompt_tokens_total", label]
        assert 0 < found["floe_prefix_cache_hit_tokens_total", label] < looked_up


async def test_tenants_have_their_own_figures_and_uses_are_recorded_without_text(
    opened: Open, models_home: Path
) -> None:
    log = models_home / USAGE
    log.unlink(missing_ok=True)
    secrets = Secrets(api_key="own-key", tenant_keys={"ward": "ward-key"})
    world = opened(
        slots=2,
        secrets=secrets,
        serve=ServeConfig(usage_log_bytes=100_000),
        tenants={"ward": TenantConfig(adapters=("two",))},
    )
    async with world.client("ward-key") as ward, world.client("own-key") as own:
        assert (await ask(ward, "one")).status_code == 404
        assert (await ask(ward, "two")).status_code == 200
        assert (await ask(own, "one")).status_code == 200
        found = await figures(own)
        rows = (await ward.get("/v1/adapters")).json()
    assert found["floe_tenant_requests_total", "ward"] == 1
    assert [row["id"] for row in rows["data"]] == ["two"]
    await asyncio.wait_for(_until(lambda: log.is_file() and len(log.read_text().split()) == 3), 10)
    head, first, second = log.read_text().split()
    assert head == "time,key,size,load_ms,tenant"
    digests = {n: world.edge.store.get(n).manifest.digest for n in ("one", "two")}
    assert first.split(",")[1:3] == [digests["two"], str(world.size)]
    assert (first.split(",")[4], second.split(",")[4]) == ("ward", "default")
    assert "thing" not in log.read_text()


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)
