"""Router and cache together: what is asked for comes into memory; learning harms nobody."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cache_toys import FileStore, Handle, Memory, cache, route, settled
from numpy.typing import NDArray

from floe.adapters.cache import AdapterCache
from floe.adapters.epochs import EpochController, EpochSettings
from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter
from floe.core.outcome import Outcome
from floe.core.request import Request
from floe.core.route import Route
from floe.core.sections import RoutingConfig
from floe.polar import PolarManager
from floe.routing.learner import Learner
from floe.routing.router import Router

ENCODER = "e" * 64
WORDS = ("sum", "loop", "rain", "court")
CONFIG = RoutingConfig(temperature=0.1, threshold=0.3, context_width=4, top_k=1, agreement=True)


class Words:
    """Counts of four words, normalised: one per adapter."""

    digest, width = ENCODER, 4

    def __call__(self, text: str) -> NDArray[np.float32]:
        counts = np.array([text.split().count(w) for w in WORDS], dtype=np.float32)
        length = np.linalg.norm(counts)
        return counts / length if length else counts


class Device:
    """Four adapters of 100 bytes, of which two fit."""

    def __init__(self, tmp_path: Path, *, kind: str = "fixed", quota: float = 0.0) -> None:
        self.store = FileStore(tmp_path / "store", dict.fromkeys(WORDS, 100))
        for n, name in enumerate(WORDS):
            stored = self.store.stored[name]
            vector = tuple(float(n == k) for k in range(4))
            manifest = replace(
                stored.manifest, centroid=Centroid(encoder_digest=ENCODER, vector=vector)
            )
            self.store.stored[name] = replace(stored, manifest=manifest)
        self.memory = Memory()
        self.cache: AdapterCache[Handle] = cache(self.store, self.memory, 200)
        self.router = Router(
            embedding=Words(),
            adapters=lambda: [s.manifest for s in self.store.stored.values()],
            base_names={"tiny"},
            config=CONFIG,
            learner=Learner(config=CONFIG, encoder_digest=ENCODER, embedding_width=4),
            resident=self.cache.is_resident,
            load_ms=lambda m: self.cache.load_ms(m.digest),
        )
        settings = EpochSettings(kind="fixed", first=8, quota=quota, hysteresis=0.0)
        self.polar = PolarManager(
            router=self.router,
            cache=self.cache,
            sizes=lambda: {s.manifest.digest: 100 for s in self.store.stored.values()},
            miss_cost_per_s=1.0,
            epochs=EpochController(settings) if kind == "fixed" else None,
        )

    async def ask(
        self, text: str, *, n: int = 0, agreement: float | None = -1.0, model: str = "auto"
    ) -> Route:
        request = Request(id=f"r{n}", prompt=text, model=model)
        chosen = self.polar.route(request)
        async with self.polar.lease(chosen) as leased:
            assert len(leased) == len(chosen.shares)
        self.polar.learn(
            Outcome(
                request_id=request.id, tenant="default", route=chosen, topic=text, wait_ms=1.0,
                first_token_ms=2.0, total_ms=3.0, completion_tokens=4, agreement=agreement,
                agreement_tokens=4,
            )
        )  # fmt: skip
        await self.polar.settled()
        return chosen


async def test_what_is_asked_for_comes_into_memory_at_the_end_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(tmp_path)
    monkeypatch.setattr(device.cache, "load_ms", lambda _digest: 10.0)  # measured ones differ
    texts = ["sum", "loop", "sum", "loop", "sum", "loop", "rain", "court"]
    for n, text in enumerate(texts):
        await device.ask(text, n=n)
    await settled(device.cache)
    assert device.polar.plan is not None and device.polar.plan.epoch == 1
    assert set(device.polar.plan.prefer) == {"d-sum", "d-loop"}
    assert device.cache.is_resident("d-sum") and device.cache.is_resident("d-loop")
    device.cache.check_integrity()
    assert device.polar.counters()["polar_epochs_total"] == 1.0


async def test_a_failure_in_learning_is_counted_and_says_nothing_of_the_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(tmp_path)

    def broken(outcome: Outcome) -> bool:
        raise ValueError(f"cannot read {outcome.topic}")

    monkeypatch.setattr(device.router, "learn", broken)
    with caplog.at_level(logging.DEBUG):
        assert (await device.ask("sum of secrets")).shares
    assert device.polar.counters()["polar_failures_total"] == 1.0
    assert "could not learn (ValueError)" in caplog.text and "secrets" not in caplog.text
    assert (await device.ask("sum")).shares


async def test_feedback_reaches_the_router_once(tmp_path: Path) -> None:
    device = Device(tmp_path)
    await device.ask("sum", n=3)
    assert device.polar.feedback("r3", thumbs=1)
    assert not device.polar.feedback("r9", thumbs=1)


async def test_warm_up_loads_in_order_and_says_what_cannot(tmp_path: Path) -> None:
    device = Device(tmp_path)
    digests = {name: f"d-{name}" for name in WORDS}
    await device.polar.warmup(["loop", "rain"], digests)
    assert device.memory.loads == ["d-loop", "d-rain"]
    device.memory.fail.add("d-court")
    with pytest.raises(BadAdapter, match="refused d-court"):
        await device.polar.warmup(["sum", "court"], digests)
    assert device.cache.is_resident("d-sum")
    async with device.polar.lease(route("sum")) as leased:
        assert leased


async def test_without_epochs_nothing_is_preferred(tmp_path: Path) -> None:
    device = Device(tmp_path, kind="off")
    for n in range(20):
        await device.ask("sum", n=n)
    assert device.polar.plan is None and device.polar.counters()["polar_epochs_total"] == 0.0


@pytest.mark.parametrize(("agreement", "is_tried"), [(-1.0, True), (None, False)])
async def test_nothing_is_tried_where_nobody_says_how_good_answers_are(
    tmp_path: Path, agreement: float | None, is_tried: bool
) -> None:
    device = Device(tmp_path, quota=1.0)
    for n in range(16):
        await device.ask("sum", n=n, agreement=agreement)
    assert device.polar.plan is not None and device.polar.plan.epoch == 2
    assert bool(device.polar.plan.explore) is is_tried


async def test_thumbs_after_an_epoch_begin_tries_again(tmp_path: Path) -> None:
    """What was said in an epoch that is over counts no more."""
    device = Device(tmp_path, quota=1.0)
    found = []
    for n in range(24):
        await device.ask("sum", n=n, agreement=None)
        if 8 <= n < 15:
            assert device.polar.feedback(f"r{n}", thumbs=1)
        if n % 8 == 7:
            assert device.polar.plan is not None
            found.append(bool(device.polar.plan.explore))
    assert found == [False, True, False]


async def test_the_plan_takes_no_more_than_routed_requests_part_of_the_memory(
    tmp_path: Path,
) -> None:
    """One routed request in eight protects nothing from seven that name adapters."""
    device = Device(tmp_path)
    for n in range(8):
        await device.ask("sum", n=n, model="auto" if n == 0 else ("rain", "court")[n % 2])
    assert device.polar.plan is not None and device.polar.plan.prefer == ()
    await settled(device.cache)
    for n in range(8):
        await device.ask("sum loop"[4 * (n % 2) :][:4].strip(), n=n)
    assert len(device.polar.plan.prefer) == 2


async def test_feedback_on_the_heels_of_an_answer_is_heard(tmp_path: Path) -> None:
    device = Device(tmp_path)
    chosen = device.polar.route(Request(id="quick", prompt="sum"))
    device.polar.learn(
        Outcome(
            request_id="quick", tenant="default", route=chosen, topic="sum", wait_ms=1.0,
            first_token_ms=2.0, total_ms=3.0, completion_tokens=4, agreement=None,
            agreement_tokens=0,
        )
    )  # fmt: skip
    await device.polar.heard("quick")
    await device.polar.heard("unknown")
    assert device.polar.feedback("quick", thumbs=-1)
