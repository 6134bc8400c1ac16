"""/v1/models: what `model` may be, and the state the engine gives it."""

from __future__ import annotations

from collections.abc import Sequence

from floe.core.errors import NotFound
from floe.serving.callers import Caller
from floe.serving.replies import Json
from floe.serving.service import ModelRecord, Service


def all_models(service: Service) -> Sequence[ModelRecord]:
    """Every name, the embedding model's included."""
    models = list(service.models())
    embedder = service.embedder
    if embedder is not None and all(model.id != embedder.name for model in models):
        models.append(ModelRecord(id=embedder.name, kind="embedding"))
    return models


def visible(service: Service, caller: Caller) -> Sequence[ModelRecord]:
    """Every name that the caller may ask for."""
    return [
        model
        for model in all_models(service)
        if model.kind != "adapter" or caller.is_admin or service.may_use(caller.tenant, model.id)
    ]


def listed(service: Service, caller: Caller) -> Json:
    """The list, in OpenAI's shape."""
    return {"object": "list", "data": [_shown(model) for model in visible(service, caller)]}


def one(service: Service, name: str, caller: Caller) -> Json:
    """One of the list.

    Raises:
        NotFound: when it is not on the list.
    """
    for model in visible(service, caller):
        if model.id == name:
            return _shown(model)
    raise NotFound("no model of this name; /v1/models lists them", param="model")


def _shown(model: ModelRecord) -> Json:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "floe",
        "root": model.root or model.id,
        "parent": model.parent,
        "floe": {
            "kind": model.kind,
            "digest": model.digest,
            "state": model.state,
            "reason": model.reason or None,
            "resident": model.resident,
            "pins": model.pins,
            "description": model.description or None,
        },
    }
