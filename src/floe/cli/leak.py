"""The leak test with Floe's own servers, for the benchmark and the tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floe.core.request import Message, Request
    from floe.core.token import Event
    from floe.engine.base import Engine
    from floe.testing.leak import LeakReport


def run_leak_test(n_prompts: int, seed: int = 0, **options: Any) -> LeakReport:
    """`floe.testing.leak.run_leak_test` on the apps of `floe serve` and `floe cloud`."""
    from floe.testing.leak import Doors
    from floe.testing.leak import run_leak_test as run

    return run(n_prompts, seed, doors=Doors(edge=_edge_app, logits=_logits_app), **options)


def _edge_app(
    ask: Callable[[Request], AsyncGenerator[Event, None]],
    counters: Callable[[], Mapping[str, float]],
) -> Any:
    from floe.core.sections import ServeConfig
    from floe.serving.app import build_app
    from floe.serving.service import ModelRecord, Service

    models = [ModelRecord(id="auto", kind="auto"), ModelRecord(id="scripted", kind="base")]
    config = ServeConfig(max_waiting=1_000, max_body_bytes=200_000)
    return build_app(Service(answer=ask, models=lambda: models, config=config, counters=counters))


def _logits_app(
    engine: Engine, encode: Callable[[Sequence[Message], str | None], list[int]]
) -> Any:
    from floe.serving.logits_app import build_logits_app

    return build_logits_app(engine=engine, encode=encode, key=None)
