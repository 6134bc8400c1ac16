"""Adapters put in and taken out while the server runs, as vLLM's clients ask for it.

`POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter` for the admin key,
`GET /v1/adapters` for everybody, each caller seeing the adapters it may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from floe.core.errors import BadRequest, NotFound
from floe.core.files import safe_name
from floe.serving import fields
from floe.serving.body import read_json
from floe.serving.callers import Caller, KeyRing, caller_of
from floe.serving.errors import Forbidden
from floe.serving.replies import Json, encode
from floe.serving.service import AdapterAdmin, ModelRecord, Service

MOST_PATH_CHARS = 4096


@dataclass(frozen=True, kw_only=True)
class LoadAsk:
    """An adapter's name and where it lies; `replace` takes over a used name."""

    name: str
    path: str
    replace: bool


def load_ask(body: Mapping[str, Any]) -> LoadAsk:
    """What a body of /v1/load_lora_adapter asks for.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    fields.only(body, {"lora_name", "lora_path", "load_inplace", "base_model_name"})
    if not body.get("lora_name") or not body.get("lora_path"):
        raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.", param="lora_name")
    return LoadAsk(
        name=_name(body["lora_name"]),
        path=fields.text(body["lora_path"], "lora_path", least=1, most=MOST_PATH_CHARS),
        replace=fields.boolean(body.get("load_inplace") or False, "load_inplace"),
    )


def unload_ask(body: Mapping[str, Any]) -> str:
    """The name in a body of /v1/unload_lora_adapter; vLLM's `lora_int_id` says nothing here.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    fields.only(body, {"lora_name", "lora_int_id"})
    if not body.get("lora_name"):
        raise BadRequest("'lora_name' needs to be provided to unload a LoRA.", param="lora_name")
    return _name(body["lora_name"])


def admin_routes(service: Service, keys: KeyRing) -> list[Route]:
    """The addresses of this module."""

    async def body_of(http: HttpRequest) -> tuple[dict[str, Any], AdapterAdmin]:
        keys.check_admin(caller_of(http.scope))
        if service.admin is None:
            raise Forbidden("this server has no adapters that could be changed")
        return await read_json(http, max_bytes=service.config.max_body_bytes), service.admin

    async def load(http: HttpRequest) -> Response:
        body, admin = await body_of(http)
        ask = load_ask(body)
        await admin.load(ask.name, ask.path, replace=ask.replace)
        return PlainTextResponse(f"Success: LoRA adapter '{ask.name}' added successfully.")

    async def unload(http: HttpRequest) -> Response:
        body, admin = await body_of(http)
        name = unload_ask(body)
        try:
            await admin.unload(name)
        except NotFound as error:
            raise NotFound(
                f"The lora adapter '{name}' cannot be found.", param="lora_name"
            ) from error
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def adapters(http: HttpRequest) -> Response:
        return Response(
            encode(listing(service, caller_of(http.scope))), media_type="application/json"
        )

    return [
        Route("/v1/load_lora_adapter", load, methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload, methods=["POST"]),
        Route("/v1/adapters", adapters),
    ]


def listing(service: Service, caller: Caller) -> Json:
    """Where every adapter is that the caller may use, and what the memory for them holds."""
    counted = service.counters()
    rows = [
        _row(model)
        for model in service.models()
        if model.kind == "adapter" and (caller.is_admin or service.may_use(caller.tenant, model.id))
    ]
    cache = {
        name.removeprefix("adapter_").removesuffix("_total"): value
        for name, value in sorted(counted.items())
        if name.startswith("adapter_")
    }
    shared = not (caller.is_admin or caller.tenant not in service.tenants)
    if shared:
        return {"object": "list", "data": rows, "cache": None, "notes": []}
    return {"object": "list", "data": rows, "cache": cache, "notes": list(service.notes())}


def _row(model: ModelRecord) -> Json:
    return {
        "id": model.id,
        "object": "adapter",
        "parent": model.parent,
        "digest": model.digest or None,
        "state": model.state,
        "reason": model.reason or None,
        "tier": model.tier or None,
        "pinned": model.is_pinned,
        "pins": model.pins,
        "bytes": model.n_bytes,
        "rank": model.rank,
        "fit": model.fit,
        "last_used": model.last_used_s,
    }


def _name(value: Any) -> str:
    name = fields.text(value, "lora_name", least=1, most=256)
    try:
        return safe_name(name, what="adapter")
    except BadRequest as error:
        raise BadRequest(f"lora_name: {error.message}", param="lora_name") from error
