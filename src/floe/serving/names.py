"""The names that a tenant may ask for; any other is as if it did not exist."""

from __future__ import annotations

from floe.core.errors import NotFound
from floe.core.request import Request
from floe.serving.service import Service

AUTO = "auto"
_SHOWN_CHARS = 64


def check_names(service: Service, request: Request) -> None:
    """Refuse a model or an adapter that the request's tenant may not use.

    Raises:
        NotFound: as for a name that nobody has; the message lists what this tenant may ask for.
    """
    tenant = service.tenants.get(request.tenant)
    if tenant is None or not tenant.adapters:
        return
    bases = {name.lower() for name in service.base_names}
    model = request.model
    if not (model == AUTO or model.lower() in bases or model in tenant.adapters):
        known = ", ".join([AUTO, *sorted(bases), *sorted(tenant.adapters)])
        shown = model[:_SHOWN_CHARS]
        raise NotFound(f"The model `{shown}` does not exist; known: {known}", param="model")
    for i, wanted in enumerate(request.lora):
        if wanted.name not in tenant.adapters:
            known = ", ".join(sorted(tenant.adapters))
            shown = wanted.name[:_SHOWN_CHARS]
            raise NotFound(
                f"lora[{i}]: no adapter `{shown}`; known: {known}", param=f"lora[{i}].id"
            )
