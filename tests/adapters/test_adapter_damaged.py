"""A damaged adapter fails who names it; content routing goes on without it."""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import adapter_toys as toys
import numpy as np
import pytest
from numpy.typing import NDArray

from floe.adapters.cache import AdapterCache
from floe.adapters.mix import MixCache
from floe.adapters.store import AdapterStore
from floe.answer import Parts, answer
from floe.core.adapter import Centroid, StoredAdapter
from floe.core.errors import BadAdapter
from floe.core.request import Request, Sampling
from floe.core.route import Route
from floe.core.sections import RoutingConfig
from floe.core.token import Started
from floe.core.verdict import Verdict
from floe.fusion.align import Alignment
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.routing.router import Router
from floe.testing.scripted_engine import FakeAdapter, ScriptedEngine, write_fake_adapter

ENCODER = "e" * 64
NAMES = ("code", "finance", "maths")
SKIPPED = "it cannot be loaded; see the model's reason in /v1/models"


class Words:
    """Counts of the three names, normalised."""

    digest = ENCODER

    def __call__(self, text: str) -> NDArray[np.float32]:
        counts = np.array([text.split().count(n) for n in NAMES], dtype=np.float32)
        return counts / (np.linalg.norm(counts) or 1.0)


class Local:
    def inspect(self, texts: object, *, tenant: str = "") -> Verdict:
        return Verdict(action="local", reason="test")

    def inspect_draft(self, text: str, *, tenant: str = "") -> Verdict:
        return self.inspect(text)


class Device:
    """A real store, cache and router over a scripted engine."""

    def __init__(self, root: Path, *, budget_bytes: int = 1 << 20) -> None:
        self.store = AdapterStore(root / "store", toys.model())
        self.stored: dict[str, StoredAdapter] = {}
        for index, name in enumerate(NAMES):
            self.store.add(toys.folder(root / name, seed=index))
            vector = tuple(float(n == name) for n in NAMES)
            centroid = Centroid(encoder_digest=ENCODER, vector=vector)
            self.stored[name] = self.store.set_centroid(name, centroid)
        engine = ScriptedEngine(ended=0.5)
        fake = write_fake_adapter(root / "fake")

        def load(_path: Path, /, *, key: str) -> FakeAdapter:
            return engine.load_adapter(fake, key=key)

        self.cache: AdapterCache[FakeAdapter] = AdapterCache(
            store=self.store,
            load=load,
            unload=engine.unload_adapter,
            budget_bytes=budget_bytes,
            mix=MixCache(
                folder=root / "mix",
                tensors=lambda digest: self.store.tensors(self.store.find("", digest)),
                max_bytes=1 << 20,
            ),
        )
        eos_ids = engine.info.eos_ids
        self.parts = Parts(
            gate=Local(),
            router=Router(
                embedding=Words(),
                adapters=lambda: [s.manifest for s in self.store.list()],
                base_names={"toy"},
                config=RoutingConfig(temperature=0.1, top_k=2, threshold=0.3, min_share=0.1),
                fault=self.cache.fault,
            ),
            adapters=self.cache,
            engine=engine,
            encode=lambda request: engine.tokenize(request.topic()),
            cloud=None,
            guard=lambda advise, _: advise,
            fuse=SpeculativeFuser(
                weight=0.5,
                limits=Limits(budget_ms=9, first_budget_ms=9),
                alignment=Alignment(token_bytes=[], eos_ids=eos_ids),
                eos_ids=eos_ids,
                token_bytes=engine.token_bytes,
            ),
        )

    async def ask(self, text: str, *, model: str = "auto", max_tokens: int = 2) -> Route:
        """The route that an answer was given by."""
        sampling = Sampling(max_tokens=max_tokens)
        request = Request(id="r", model=model, prompt=text, sampling=sampling)
        async with aclosing(answer(request, self.parts)) as events:
            async for event in events:
                assert isinstance(event, Started)
                return event.route
        raise AssertionError("no start")

    def damage(self, name: str) -> bytes:
        """Overwrite the last byte; what was there before."""
        path = self.stored[name].gguf
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        return data


async def test_auto_goes_on_without_a_damaged_adapter_from_the_first_request(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path)
    whole = device.damage("finance")
    for _ in range(2):
        route = await device.ask("finance finance")
        assert (route.how, route.shares) == ("base", ())
        assert route.reason.endswith(f"; not routed to: finance ({SKIPPED})")
        with pytest.raises(BadAdapter, match="'finance': its file was changed on disk"):
            await device.ask("finance", model="finance")
    states = {row.name: row.state for row in device.cache.snapshot()}
    assert states == {"code": "registered", "finance": "failed", "maths": "registered"}

    path = device.stored["finance"].gguf
    path.write_bytes(whole)
    os.utime(path, ns=(1, 1))
    route = await device.ask("finance finance")
    assert [s.name for s in route.shares] == ["finance"]


async def test_auto_takes_the_whole_part_of_a_mix_composed_or_not(tmp_path: Path) -> None:
    for max_tokens in (1, 2000):
        device = Device(tmp_path / str(max_tokens))
        device.damage("finance")
        route = await device.ask("finance maths", max_tokens=max_tokens)
        assert [(s.name, s.weight) for s in route.shares] == [("maths", 1.0)]
        device.damage("maths")
        device.damage("code")
        route = await device.ask("code finance", max_tokens=max_tokens)
        assert route.how == "base"
        device.cache.check_integrity()
        assert device.cache.counters().leased == 0


async def test_auto_passes_by_what_never_fits_the_budget(tmp_path: Path) -> None:
    device = Device(tmp_path, budget_bytes=100)
    assert (await device.ask("maths")).how == "base"
    with pytest.raises(BadAdapter, match=r"Raise adapters.budget_bytes"):
        await device.ask("maths", model="maths")
    manifest = device.stored["maths"].manifest
    assert device.cache.fault(manifest).endswith("bytes, adapters.budget_bytes is 100")
    assert device.cache.fault(replace(manifest, file_bytes=100)) == ""


async def test_a_failure_the_router_knows_nothing_of_is_told(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.parts = replace(
        device.parts,
        router=Router(
            embedding=Words(),
            adapters=lambda: [s.manifest for s in device.store.list()],
            base_names={"toy"},
            config=RoutingConfig(threshold=0.3),
        ),
    )
    device.damage("maths")
    with pytest.raises(BadAdapter, match="'maths': its file was changed on disk"):
        await device.ask("maths")
