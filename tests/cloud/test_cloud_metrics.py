"""What the client counts is on the page that Prometheus reads, under floe_cloud_*."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest

from floe.cloud.client import record_nothing
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.advice import Question
from floe.core.errors import CloudFailed
from floe.serving.local import counters
from floe.serving.metrics import Metrics
from floe.testing.cloud_conformance import REQUEST, SECRET


@dataclass(frozen=True)
class NoFigures:
    hits: int = 0


def page_of(cloud: object) -> str:
    edge = SimpleNamespace(
        cache=SimpleNamespace(counters=NoFigures),
        engine=SimpleNamespace(open_sessions=0),
        parts=SimpleNamespace(cloud=cloud),
        router=SimpleNamespace(counters=dict),
        polar=SimpleNamespace(counters=dict),
    )
    metrics = Metrics(in_flight=lambda: 0, counters=lambda: counters(edge))  # type: ignore[arg-type]
    return metrics.page().decode()


@pytest.mark.parametrize("kind", ["floe", "openai"])
async def test_figures_of_the_cloud(kind: str) -> None:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(404, text=SECRET))
    )
    options = {"url": "https://cloud.example", "on_send": record_nothing, "client": client}
    cloud = LogitCloud(**options) if kind == "floe" else OpenAICloud(model="m", **options)  # type: ignore[arg-type]
    for _ in range(5):
        async with cloud.open(REQUEST) as advise:
            with pytest.raises(CloudFailed):
                await advise(Question(answer=b""))
    await cloud.close()
    page = page_of(cloud)
    for line in (
        "floe_cloud_asked_total 5.0",
        "floe_cloud_failed_total 5.0",
        "floe_cloud_breaker_state 2.0",
        "floe_cloud_loss_share 1.0",
        "floe_cloud_round_trip_p95_ms 0.0",
    ):
        assert f"\n{line}\n" in page
    assert SECRET not in page and "example" not in page


def test_without_a_cloud_there_are_none() -> None:
    assert "floe_cloud" not in page_of(None)
