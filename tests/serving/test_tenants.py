"""Tenants: known by their keys, held to their adapters, counted apart."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from scripted_service import Script, service_of

from floe.core.config import Config, Secrets
from floe.core.config_rules import check
from floe.core.errors import BadConfig
from floe.core.route import Route
from floe.core.sections import TenantConfig
from floe.serving.app import build_app
from floe.serving.callers import Caller, KeyRing
from floe.serving.service import ModelRecord, Service

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
MODELS = (
    ModelRecord(id="auto", kind="auto"),
    ModelRecord(id="smol", kind="base"),
    *(ModelRecord(id=name, kind="adapter", parent="smol") for name in ("maths", "law", "code")),
)
TENANTS = {"ward": TenantConfig(adapters=("law",)), "lab": TenantConfig()}
KEYS = {"ward": "ward-key", "lab": "lab-key"}


def world(script: Script, **changes: Any) -> Service:
    values: dict[str, Any] = {
        "models": lambda: MODELS,
        "base_names": {"smol"},
        "api_key": "own-key",
        "admin_key": "admin-key",
        "tenants": TENANTS,
        "tenant_keys": KEYS,
    }
    return service_of(script, **(values | changes))


def client_of(service: Service, key: str | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=build_app(service)),
        base_url="http://127.0.0.1:8741",
        headers={"authorization": f"Bearer {key}"} if key else {},
    )


@pytest.fixture
async def ward() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(world(Script()), "ward-key") as client:
        yield client


@pytest.mark.parametrize(
    ("key", "tenant"),
    [("own-key", "default"), ("ward-key", "ward"), ("lab-key", "lab"), ("admin-key", "default")],
)
async def test_a_request_carries_its_keys_tenant(key: str, tenant: str) -> None:
    script = Script()
    async with client_of(world(script), key) as client:
        assert (await client.post(CHAT, json=ASK)).status_code == 200
    assert [request.tenant for request in script.requests] == [tenant]


@pytest.mark.parametrize("key", [None, "ward", "ward-keys", "own-key-", "é"])
async def test_no_tenant_without_its_key(key: str | None) -> None:
    script = Script()
    headers = {} if key is None else {"authorization": f"Bearer {key}".encode()}
    async with client_of(world(script)) as client:
        answer = await client.post(CHAT, json=ASK, headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code, script.requests) == (401, [])


async def test_tenants_without_a_default_key_leave_no_open_door() -> None:
    async with client_of(world(Script(), api_key=None)) as client:
        assert (await client.post(CHAT, json=ASK)).status_code == 401


async def test_an_admin_key_alone_closes_nothing_but_what_the_operator_does() -> None:
    service = world(Script(), api_key=None, tenants={}, tenant_keys={})
    async with client_of(service) as client:
        assert (await client.post(CHAT, json=ASK)).status_code == 200
        refused = await client.post("/v1/unload_lora_adapter", json={"lora_name": "law"})
        assert refused.status_code == 403
        foreign = await client.get("/v1/models", headers={"host": "evil.example"})
        assert foreign.status_code == 403


@pytest.mark.parametrize("given", ["own-key", "ward-key", "admin-key", "none of them"])
def test_every_key_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    lengths: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        lengths.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr("floe.serving.callers.hmac.compare_digest", counted)
    ring = KeyRing(api_key="own-key", tenant_keys=KEYS, admin_key="admin-key")
    headers = httpx.Headers({"authorization": f"Bearer {given}"})
    try:
        ring.caller(headers)  # type: ignore[arg-type]
    except Exception as error:
        assert "the API key is wrong" in str(error)
    assert lengths == [(32, 32)] * 4


def test_one_key_for_two_is_refused() -> None:
    with pytest.raises(BadConfig, match="two keys of the server are the same"):
        KeyRing(api_key="k", tenant_keys={"ward": "k"}, admin_key=None)
    with pytest.raises(BadConfig, match="two keys"):
        KeyRing(api_key=None, tenant_keys={"ward": "k"}, admin_key="k")
    ring = KeyRing(api_key=None, tenant_keys={}, admin_key="k")
    bearer = httpx.Headers({"authorization": "Bearer k"})
    assert ring.caller(bearer) == Caller(is_admin=True)  # type: ignore[arg-type]


async def test_what_a_tenant_may_not_use_does_not_exist_for_it(ward: httpx.AsyncClient) -> None:
    listed = [m["id"] for m in (await ward.get("/v1/models")).json()["data"]]
    assert listed == ["auto", "smol", "law", "words"]
    assert (await ward.get("/v1/models/law")).status_code == 200
    assert (await ward.get("/v1/models/maths")).status_code == 404
    rows = [row["id"] for row in (await ward.get("/v1/adapters")).json()["data"]]
    assert rows == ["law"]
    for body in (
        ASK | {"model": "maths"},
        ASK | {"model": "no-such"},
        ASK | {"lora": [{"id": "law", "scale": 1}, {"id": "maths", "scale": 1}]},
    ):
        answer = await ward.post(CHAT, json=body)
        error = answer.json()["error"]
        assert answer.status_code == 404
        assert "known: " in error["message"]
        assert "law" in error["message"]
        assert "code" not in error["message"].replace("error", "")
    for body in (ASK, ASK | {"model": "SMOL"}, ASK | {"model": "law"}, ASK | {"lora": []}):
        assert (await ward.post(CHAT, json=body)).status_code == 200


async def test_other_tenants_see_every_adapter() -> None:
    for key in ("lab-key", "own-key", "admin-key"):
        async with client_of(world(Script()), key) as client:
            listed = [m["id"] for m in (await client.get("/v1/models")).json()["data"]]
            assert {"maths", "law", "code"} <= set(listed)
            assert (await client.post(CHAT, json=ASK | {"model": "maths"})).status_code == 200


async def test_figures_are_kept_by_configured_tenants_only_and_not_shown_to_them() -> None:
    app = httpx.ASGITransport(app=build_app(world(Script(route=Route()))))
    async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:

        async def get(key: str, path: str) -> httpx.Response:
            return await client.get(path, headers={"authorization": f"Bearer {key}"})

        for key, times in (("ward-key", 2), ("own-key", 1)):
            for _ in range(times):
                headers = {"authorization": f"Bearer {key}"}
                await client.post(CHAT, json=ASK, headers=headers)
        assert (await get("ward-key", "/metrics")).status_code == 403
        page = (await get("admin-key", "/metrics")).text
        assert (await get("own-key", "/metrics")).status_code == 200
        cache = (await get("ward-key", "/v1/adapters")).json()["cache"]
    assert cache is None
    assert 'floe_tenant_requests_total{tenant="ward"} 2.0' in page
    assert 'floe_tenant_answers_total{tenant="ward"} 2.0' in page
    assert 'floe_tenant_requests_total{tenant="default"} 1.0' in page
    assert 'floe_tenant_tokens_total{tenant="lab"} 0.0' in page
    assert 'floe_tenant_first_token_seconds_count{tenant="ward"} 2.0' in page
    tenants = {
        line.split('tenant="')[1].split('"')[0] for line in page.splitlines() if "{t" in line
    }
    assert tenants == {"default", "ward", "lab"}


def test_keys_come_from_the_environment_by_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_API_KEY_WARD_7", " tulip \n")
    monkeypatch.setenv("FLOE_API_KEY", "rose")
    secrets = Secrets.from_environment({"ward-7": TenantConfig(), "default": TenantConfig()})
    assert secrets.tenant_keys == {"ward-7": "tulip"}
    assert secrets.api_key == "rose"
    assert "tulip" not in repr(secrets)
    assert "tulip" not in repr(world(Script(), tenant_keys={"ward": "tulip"}))
    assert Secrets.from_environment().tenant_keys == {}
    assert secrets.any_key == "rose"
    assert Secrets(tenant_keys={"ward": "tulip"}, admin_key="a").any_key == "tulip"
    assert Secrets(admin_key="a").any_key is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "tenant 'ward' has no key: set FLOE_API_KEY_WARD"),
        ({"FLOE_API_KEY_WARD": " "}, "FLOE_API_KEY_WARD is blank"),
        ({"FLOE_API_KEY_WARD": "k", "FLOE_API_KEY": "k"}, "FLOE_API_KEY and FLOE_API_KEY_WARD are"),
        ({"FLOE_API_KEY_WARD": "k", "FLOE_ADMIN_KEY": "k"}, "the same key: give each its own"),
        ({"FLOE_API_KEY_WARD": "k", "FLOE_API_KEY_LAB": "k"}, "FLOE_API_KEY_LAB and FLOE_API_KEY"),
    ],
)
def test_a_tenant_needs_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str
) -> None:
    for name in ("FLOE_API_KEY_WARD", "FLOE_API_KEY_LAB"):
        monkeypatch.delenv(name, raising=False)
    for name, key in environment.items():
        monkeypatch.setenv(name, key)
    tenants = ["ward", "lab"] if "FLOE_API_KEY_LAB" in environment else ["ward"]
    with pytest.raises(BadConfig, match=said):
        Secrets.from_environment(tenants)


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ({"a/b": TenantConfig()}, "tenants.a/b must be named by at most 32 letters"),
        ({"7": TenantConfig()}, "a letter first"),
        ({"a-b": TenantConfig(), "A_B": TenantConfig()}, "told apart by their names"),
        ({"a": TenantConfig(share=0.0)}, "tenants.a.share must be above 0"),
        ({"a": TenantConfig(share=float("nan"))}, "tenants.a.share must be"),
        ({"a": TenantConfig(guaranteed_bytes=-1)}, "tenants.a.guaranteed_bytes must be 0 or more"),
        (
            {
                "a": TenantConfig(guaranteed_bytes=40_000_000),
                "b": TenantConfig(guaranteed_bytes=24_000_001),
            },
            "at most adapters.budget_bytes in all, not 64000001",
        ),
    ],
)
def test_tenants_that_cannot_be_served_stop_the_start(
    tenants: dict[str, TenantConfig], said: str
) -> None:
    with pytest.raises(BadConfig, match=said):
        check(Config(tenants=tenants))
