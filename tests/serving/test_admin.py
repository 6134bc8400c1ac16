"""Adapters loaded and unloaded over HTTP, on the tiny model with the real store, engine, cache."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_service import MATHS, Script, service_of

from floe.adapters.cache import AdapterCache
from floe.adapters.store import AdapterStore
from floe.core.errors import BadAdapter, FloeError, NotFound
from floe.core.route import Route, Share
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.serving.adapter_admin import StoreAdmin, inside
from floe.serving.app import build_app
from floe.serving.service import ModelRecord, Service
from floe.testing.tiny_model import make_tiny_adapter, make_tiny_model

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADMIN = {"authorization": "Bearer admin-key"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppEngine]:
    tiny = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    engine = LlamaCppEngine(tiny.gguf, name="tiny-llama", threads=1, context_tokens=128)
    yield engine
    engine.close()


class World:
    """A store, a cache and a folder that adapters may come from."""

    def __init__(self, engine: LlamaCppEngine, root: Path, **changes: Any) -> None:
        self.folder = root / "incoming"
        make_tiny_adapter(self.folder / "one", seed=1)
        make_tiny_adapter(self.folder / "deep" / "two", seed=2, rank=8)
        self.engine = engine
        self.store = AdapterStore(root / "store", engine.info)
        self.loads: list[str] = []
        self.refuse: set[str] = set()
        self.cache: AdapterCache[LlamaAdapter] = AdapterCache(
            store=self.store,
            load=self._load,
            unload=engine.unload_adapter,
            budget_bytes=changes.pop("budget_bytes", 1_000_000),
        )
        self.gone: list[str] = []
        self.admin = StoreAdmin(
            store=self.store, cache=self.cache, folder=str(self.folder), gone=self.gone.append
        )

    def _load(self, path: Path, *, key: str) -> LlamaAdapter:
        self.loads.append(key)
        if len(self.refuse) and key not in self.refuse:
            raise BadAdapter("the engine has no room for it")
        return self.engine.load_adapter(path, key=key)

    def names(self) -> dict[str, str]:
        return {s.manifest.name: s.manifest.digest for s in self.store.list()}

    def service(self, script: Script, **changes: Any) -> Service:
        def models() -> list[ModelRecord]:
            return [
                ModelRecord(
                    id=row.name, kind="adapter", digest=row.digest, state=row.state, tier=row.tier,
                    pins=row.pins, n_bytes=row.n_bytes, fit=row.fit, rank=row.rank,
                    last_used_s=row.last_used_s,
                )
                for row in self.cache.snapshot()
            ]  # fmt: skip

        values: dict[str, Any] = {
            "models": models, "admin": self.admin, "admin_key": "admin-key", "api_key": "own-key"
        }  # fmt: skip
        return service_of(script, **(values | changes))

    async def free(self) -> None:
        for digest in set(self.names().values()):
            await self.cache.forget(digest)


@pytest.fixture
async def world(engine: LlamaCppEngine, tmp_path: Path) -> AsyncIterator[World]:
    world = World(engine, tmp_path)
    yield world
    world.cache.check_integrity()
    await world.free()


def client_of(service: Service) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=ADMIN)


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> tuple[int, str]:
    answer = await client.post(path, json=body)
    if answer.headers["content-type"].startswith("application/json"):
        return answer.status_code, str(answer.json()["error"]["message"])
    return answer.status_code, answer.text


async def test_the_answers_are_vllms(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        assert await post(client, LOAD, lora_name="a", lora_path="one") == (
            200,
            "Success: LoRA adapter 'a' added successfully.",
        )
        assert list(world.names()) == ["a"]
        assert world.cache.is_resident(world.names()["a"])
        again = await post(client, LOAD, lora_name="a", lora_path="one")
        assert again[0] == 200  # the same content under the same name is no change
        taken = await post(client, LOAD, lora_name="a", lora_path="deep/two")
        assert taken[0] == 400
        assert taken[1].startswith("The lora adapter 'a' has already been loaded. If you want")
        removed = await post(client, UNLOAD, lora_name="a", lora_int_id=7)
        assert removed == (200, "Success: LoRA adapter 'a' removed successfully.")
        assert await post(client, UNLOAD, lora_name="a") == (
            404,
            "The lora adapter 'a' cannot be found.",
        )
    assert world.names() == {}
    assert world.cache.counters().resident == 0


async def test_a_replaced_adapter_is_forgotten(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        await post(client, LOAD, lora_name="a", lora_path="one")
        old = world.names()["a"]
        done = await post(client, LOAD, lora_name="a", lora_path="deep/two", load_inplace=True)
    assert done[0] == 200
    assert world.gone == [old]
    assert not world.cache.is_resident(old)
    assert world.cache.is_resident(world.names()["a"])


async def test_content_that_another_name_has_stays(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        for name in ("a", "b"):
            await post(client, LOAD, lora_name=name, lora_path="one")
        await post(client, UNLOAD, lora_name="a")
    assert world.gone == []
    assert world.cache.is_resident(world.names()["b"])


async def test_an_adapter_in_use_finishes_first(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        await post(client, LOAD, lora_name="a", lora_path="one")
        digest = world.names()["a"]
        share = Share(name="a", digest=digest, weight=1.0)
        async with world.cache.lease(Route(shares=(share,))) as leased:
            assert (await post(client, UNLOAD, lora_name="a"))[0] == 200
            session = world.engine.session(leased).result()
            assert session.feed([5, 6, 7]).shape
            session.close()
            assert world.cache.is_resident(digest)
        await asyncio.wait_for(_until(lambda: not world.cache.is_resident(digest)), 10)


async def _until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../one", "one/../../outside", "deep/../../outside", "/etc", "~", "."),
        *(
            "C:\\adapters",
            "\\\\host\\share",
            "..\\one",
            "nowhere",
            "one\0",
            "out",
            "loop",
            "linked",
        ),
    ],
)
async def test_a29_a_path_stays_inside_the_configured_folder(world: World, path: str) -> None:
    outside = make_tiny_adapter(world.folder.parent / "outside", seed=3)
    (world.folder / "out").symlink_to(outside, target_is_directory=True)
    (world.folder / "loop").symlink_to("loop")
    shutil.copytree(world.folder / "one", world.folder / "linked")
    (world.folder / "linked" / "adapter_model.safetensors").unlink()
    (world.folder / "linked" / "adapter_model.safetensors").symlink_to(
        outside / "adapter_model.safetensors"
    )
    async with client_of(world.service(Script())) as client:
        status, said = await post(client, LOAD, lora_name="a", lora_path=path)
    assert status == 404
    assert "lora_path is relative to serve.adapter_folder and stays inside it" in said
    assert world.names() == {}


def test_a29_links_inside_the_folder_are_followed(world: World) -> None:
    (world.folder / "alias").symlink_to("one", target_is_directory=True)
    assert inside(world.folder, "alias") == (world.folder / "one").resolve()
    with pytest.raises(NotFound):
        inside(world.folder / "absent", "one")


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".a", "a" * 65, "a..b", "auto", "tiny-llama"])
async def test_a29_a_name_is_a_plain_word(world: World, name: str) -> None:
    async with client_of(world.service(Script())) as client:
        assert (await post(client, LOAD, lora_name=name, lora_path="one"))[0] == 400
    assert world.names() == {}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"lora_name": "a"}, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_path": "one"}, "Both 'lora_name' and 'lora_path' must be provided."),
        ({"lora_name": 5, "lora_path": "one"}, "lora_name must be a string"),
        ({"lora_name": "a", "lora_path": ["one"]}, "lora_path must be a string"),
        ({"lora_name": "a", "lora_path": "one", "load_inplace": 1}, "must be true or false"),
        ({"lora_name": "a", "lora_path": "one", "pinned": True}, 'unknown field "pinned"'),
    ],
)
async def test_what_is_no_order_is_refused(world: World, body: dict[str, Any], said: str) -> None:
    async with client_of(world.service(Script())) as client:
        answer = await client.post(LOAD, json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
        unload = await client.post(UNLOAD, json={})
        assert "needs to be provided to unload" in unload.json()["error"]["message"]


async def test_a31_several_candidates_are_an_error(world: World) -> None:
    one = world.folder / "one"
    shutil.copy(one / "adapter_model.safetensors", one / "adapter_model-step250.safetensors")
    async with client_of(world.service(Script())) as client:
        status, said = await post(client, LOAD, lora_name="a", lora_path="one")
    assert status == 409
    assert "several weight files" in said
    assert world.names() == {}


async def test_what_cannot_be_applied_changes_nothing(world: World) -> None:
    (world.folder / "one" / "adapter_config.json").write_text("{")
    async with client_of(world.service(Script())) as client:
        await post(client, LOAD, lora_name="a", lora_path="deep/two")
        before = world.names()
        status, _ = await post(client, LOAD, lora_name="a", lora_path="one", load_inplace=True)
    assert status == 409
    assert world.names() == before
    assert world.gone == []


async def test_what_the_engine_refuses_is_taken_out_again(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        await post(client, LOAD, lora_name="a", lora_path="one")
        before = world.names()
        world.refuse = {before["a"]}
        status, said = await post(
            client, LOAD, lora_name="a", lora_path="deep/two", load_inplace=True
        )
        assert (status, said) == (409, "the engine has no room for it")
        assert world.names() == before
        status, _ = await post(client, LOAD, lora_name="b", lora_path="deep/two")
        assert status == 409
        assert world.names() == before
        share = Share(name="a", digest=before["a"], weight=1.0)
        async with world.cache.lease(Route(shares=(share,))) as leased:
            assert len(leased) == 1


async def test_a32_what_can_never_fit_is_refused_and_the_listing_says_what_fits(
    engine: LlamaCppEngine, tmp_path: Path
) -> None:
    first = World(engine, tmp_path / "measure")
    await first.admin.load("a", "one", replace=False)
    size = first.cache.snapshot()[0].n_bytes
    await first.free()
    exact = World(engine, tmp_path / "exact", budget_bytes=size)
    async with client_of(exact.service(Script())) as client:
        assert (await post(client, LOAD, lora_name="a", lora_path="one"))[0] == 200
        status, said = await post(client, LOAD, lora_name="b", lora_path="deep/two")
        assert status == 409
        assert f"the budget is {size}" in said
        [row] = (await client.get("/v1/adapters")).json()["data"]
    assert (row["bytes"], row["fit"], row["tier"], row["state"]) == (size, 1, "memory", "ready")
    await exact.free()


async def test_memory_full_of_adapters_in_use_puts_the_load_off(
    engine: LlamaCppEngine, tmp_path: Path
) -> None:
    world = World(engine, tmp_path, budget_bytes=100_000)
    await world.admin.load("a", "one", replace=False)
    share = Share(name="a", digest=world.names()["a"], weight=1.0)
    async with world.cache.lease(Route(shares=(share,))):
        await asyncio.wait_for(world.admin.load("b", "deep/two", replace=False), 60)
    assert set(world.names()) == {"a", "b"}
    await world.free()


async def test_a23_the_listing_tells_tier_pins_size_digest_and_last_use(world: World) -> None:
    async with client_of(world.service(Script())) as client:
        await post(client, LOAD, lora_name="a", lora_path="one")
        await asyncio.to_thread(world.store.add, world.folder / "deep" / "two", name="b")
        a, b = (await client.get("/v1/adapters")).json()["data"]
        models = (await client.get("/v1/models")).json()["data"]
    assert {m["id"] for m in models} == {"a", "b", "words"}
    assert (a["id"], a["tier"], a["pins"], a["pinned"]) == ("a", "memory", 0, False)
    assert a["digest"] == world.names()["a"]
    assert a["bytes"] > 0
    assert a["last_used"] is not None
    assert (b["tier"], b["state"], b["last_used"]) == ("disk", "registered", None)


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_the_doors_are_shut_without_the_admin_key(world: World, path: str) -> None:
    body = {"lora_name": "a", "lora_path": "one"}
    own = {"authorization": "Bearer own-key"}
    async with client_of(world.service(Script(), admin_key=None)) as client:
        answer = await client.post(path, json=body, headers=own)
        assert answer.status_code == 403
        assert "Set FLOE_ADMIN_KEY" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "permission_error"
    async with client_of(world.service(Script())) as client:
        answer = await client.post(path, json=body, headers=own)
        assert answer.status_code == 403
        assert "needs the admin key" in answer.json()["error"]["message"]
        assert (
            await client.post(path, json=body, headers={"authorization": ""})
        ).status_code == 401
    assert world.names() == {}


async def test_without_a_folder_loading_is_off_and_unloading_works(world: World) -> None:
    await world.admin.load("a", "one", replace=False)
    closed = StoreAdmin(store=world.store, cache=world.cache, folder="")
    async with client_of(world.service(Script(), admin=closed)) as client:
        status, said = await post(client, LOAD, lora_name="b", lora_path="one")
        assert status == 403
        assert "set serve.adapter_folder" in said
        assert (await post(client, UNLOAD, lora_name="a"))[0] == 200
    async with client_of(world.service(Script(), admin=None)) as client:
        assert "no adapters that could be changed" in (await post(client, UNLOAD, lora_name="a"))[1]


async def test_a25_a_stream_goes_on_while_an_adapter_loads(world: World) -> None:
    """The load hangs in its thread until the whole answer of another client has arrived."""
    began, may_end = threading.Event(), threading.Event()
    real = world.store.add

    def slow(*args: Any, **kwargs: Any) -> Any:
        began.set()
        assert may_end.wait(30)
        return real(*args, **kwargs)

    world.store.add = slow  # type: ignore[method-assign]
    script = Script(route=MATHS)
    async with client_of(world.service(script)) as client:
        loading = asyncio.create_task(post(client, LOAD, lora_name="a", lora_path="one"))
        assert await asyncio.to_thread(began.wait, 30)
        ask = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post("/v1/chat/completions", json=ask)
        assert answer.text.rstrip().endswith("data: [DONE]")
        assert not loading.done()
        may_end.set()
        assert (await loading)[0] == 200


async def test_what_is_pinned_stays_until_the_configuration_says_otherwise(world: World) -> None:
    await world.admin.load("a", "one", replace=False)
    pinning = StoreAdmin(
        store=world.store, cache=world.cache, folder=str(world.folder), pinned=("a",)
    )
    async with client_of(world.service(Script(), admin=pinning, notes=lambda: ["a note"])) as c:
        status, said = await post(c, UNLOAD, lora_name="a")
        assert (status, "is named in adapters.pinned" in said) == (400, True)
        replaced = await post(c, LOAD, lora_name="a", lora_path="deep/two", load_inplace=True)
        assert replaced[0] == 200
        assert (await c.get("/v1/adapters")).json()["notes"] == ["a note"]


async def test_the_start_runs_beside_the_first_requests(world: World) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    app = build_app(world.service(Script(), start=start))
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(began.wait(), 10)
    assert ended.is_set()


async def test_a_start_that_fails_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    failed = asyncio.Event()

    async def start() -> None:
        failed.set()
        raise RuntimeError("the text of nobody")

    app = build_app(world.service(Script(), start=start))
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(failed.wait(), 10)
    assert "request start failed: RuntimeError at test_admin.py" in caplog.text
    assert "nobody" not in caplog.text


async def test_changes_come_one_after_the_other(world: World) -> None:
    orders = [world.admin.load(n, p, replace=True) for n in "ab" for p in ("one", "deep/two")]
    results = await asyncio.gather(*orders, world.admin.unload("b"), return_exceptions=True)
    assert [r for r in results if isinstance(r, Exception)] == []
    assert list(world.names()) == ["a"]
    with pytest.raises(FloeError, match="nothing removed"):
        await world.admin.unload("b")
