"""The cache over a real engine: reloads, loads ahead and remote copies change no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cache_toys import settled
from numpy.typing import NDArray

from floe.adapters.cache import AdapterCache
from floe.adapters.host import HostMemory
from floe.adapters.policies import make_policy
from floe.adapters.remote import Remote
from floe.adapters.remote_index import publish
from floe.adapters.remote_store import RemoteStore
from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.core.route import Route, Share
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine


@pytest.fixture(scope="module")
def engine(slm_gguf: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(
        slm_gguf, name="smollm2-135m-instruct", digest="x", threads=1, context_tokens=256
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def store(engine: LlamaCppEngine, tmp_path_factory: pytest.TempPathFactory) -> AdapterStore:
    store = AdapterStore(tmp_path_factory.mktemp("store"), engine.info)
    for folder in shipped():
        store.add(folder, any_base=True)
    return store


def route(store: AdapterStore | RemoteStore, name: str) -> Route:
    digest = next(s.manifest.digest for s in store.list() if s.manifest.name == name)
    return Route(shares=(Share(name=name, digest=digest, weight=1.0),), how="explicit")


async def answer_of(
    kept: AdapterCache[LlamaAdapter], engine: LlamaCppEngine, asked: Route
) -> NDArray[np.float32]:
    """After a short prompt under the route's adapters."""
    prompt = engine.tokenize("The patient was given")
    async with kept.lease(asked) as leased:
        waiting = engine.session(leased, prompt=prompt, max_tokens=16)
        session = await asyncio.wrap_future(waiting)
        try:
            return await asyncio.wrap_future(session.submit(prompt))
        finally:
            session.close()


async def test_reloads_from_host_memory_and_loads_ahead_give_the_same_answers(
    engine: LlamaCppEngine, store: AdapterStore
) -> None:
    size = max(s.manifest.file_bytes for s in store.list())
    host = HostMemory(budget_bytes=64 << 20)
    names = [s.manifest.name for s in store.list()]
    assert len(names) == 5
    kept = AdapterCache(
        store=store, load=engine.load_adapter, unload=engine.unload_adapter,
        budget_bytes=2 * size, policy=make_policy("learned"), host=host, wait_ms=10_000,
    )  # fmt: skip
    first = {n: await answer_of(kept, engine, route(store, n)) for n in names}
    assert len({bytes(p) for p in first.values()}) == 5
    assert kept.counters().evictions == 3 and kept.counters().host_hits == 0

    async def stream() -> None:
        for _ in range(3):
            for name in names:
                got = await answer_of(kept, engine, route(store, name))
                np.testing.assert_array_equal(got, first[name])

    await asyncio.gather(stream(), stream())  # each other's adapters come and go
    counters = kept.counters()
    assert counters.reloads > 0 and counters.host_hits == counters.loads - 5
    assert counters.resident <= 2 and counters.policy_faults == 0
    gone = next(n for n in names if not kept.is_resident(route(store, n).shares[0].digest))
    with kept.expect(route(store, gone)):
        await settled(kept)
        assert kept.is_resident(route(store, gone).shares[0].digest)
        np.testing.assert_array_equal(
            await answer_of(kept, engine, route(store, gone)), first[gone]
        )
    assert kept.counters().prefetch_used >= 1
    kept.check_integrity()
    for name in names:
        await kept.forget(route(store, name).shares[0].digest)
    assert kept.counters().resident_bytes == host.used_bytes == 0


async def test_an_adapter_from_a_remote_answers_as_the_one_that_was_published(
    engine: LlamaCppEngine, store: AdapterStore, tmp_path: Path
) -> None:
    publish(store, tmp_path / "remote")
    far = RemoteStore(
        local=AdapterStore(tmp_path / "empty", engine.info),
        remote=Remote((tmp_path / "remote").as_uri()),
        folder=tmp_path / "fetched",
        model=engine.info,
        disk_bytes=64 << 20,
    )
    answers = []
    for source in (store, far):
        kept: AdapterCache[LlamaAdapter] = AdapterCache(
            store=source, load=engine.load_adapter, unload=engine.unload_adapter,
            budget_bytes=1 << 24,
        )  # fmt: skip
        answers.append(await answer_of(kept, engine, route(source, "medicine")))
        await kept.forget(route(source, "medicine").shares[0].digest)
    np.testing.assert_array_equal(*answers)
    assert {s.manifest.name for s in far.list() if s.gguf.is_file()} == {"medicine"}
