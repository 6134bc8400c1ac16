"""An assembled edge as the record that the HTTP door serves."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import accumulate

from floe import __version__
from floe.adapters.slots import TenantFigures
from floe.answer import answer
from floe.assemble import EMBEDDING, Edge
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.config import Secrets
from floe.core.config_rules import DEFAULT
from floe.core.request import Request
from floe.core.route import Route
from floe.core.token import Event, Started
from floe.power.build import Power
from floe.routing.router import AUTO
from floe.serving.adapter_admin import StoreAdmin
from floe.serving.hot_answers import HotAnswers, Judges
from floe.serving.service import Embedder, Feedback, Figure, ModelRecord, Service, Spread
from floe.serving.usage_log import USAGE, UsageLog

log = logging.getLogger("floe.serving")

GAUGES = {
    *("budget_bytes", "resident_bytes", "pinned_bytes", "leased_bytes", "host_bytes"),
    *("resident", "leased", "active", "pinned", "waiting"),
    *("evictions_per_min", "reloads_per_min"),
}
"""Of the cache's counters, those that go up and down."""


def service_of(edge: Edge, secrets: Secrets) -> Service:
    """Everything `build_app` needs, from one assembled edge."""

    def plain(request: Request) -> AsyncGenerator[Event, None]:
        return answer(request, edge.parts)

    warn_if_cut(edge.config.model.context_tokens, edge.engine.info.context_tokens)
    ask = _recorded(edge, plain) if edge.config.serve.usage_log_bytes else plain
    hot = hot_answers(edge, ask) if edge.config.serve.hot_answers_bytes else None
    return Service(
        answer=hot or ask,
        models=lambda: model_records(edge),
        config=edge.config.serve,
        embedder=Embedder(
            name=EMBEDDING,
            dimensions=edge.embedding.width,
            embed=lambda text: [float(x) for x in edge.embedding(text)],
            count_tokens=edge.embedding.count_tokens,
        ),
        versions=versions(edge),
        alive=lambda: edge.engine.failure or edge.cache.failure or None,
        ready=lambda: edge.engine.failure,
        counters=lambda: {**counters(edge), **(hot.counters() if hot else {})},
        api_key=secrets.api_key,
        fingerprint=f"floe-{__version__}-{edge.engine.info.digest[:12]}",
        figures=lambda: figures(edge),
        tenants=edge.config.tenants,
        tenant_keys=secrets.tenant_keys,
        admin_key=secrets.admin_key,
        base_names={edge.engine.info.name},
        start=edge.cache.start,
        notes=lambda: edge.cache.notes,
        admin=StoreAdmin(
            store=edge.store,
            cache=edge.cache,
            folder=edge.config.serve.adapter_folder,
            pinned=edge.config.adapters.pinned,
            gone=edge.router.forget,
        ),
        feedback=partial(_feedback, edge),
    )


async def _feedback(edge: Edge, said: Feedback) -> bool:
    """Tell the router what was said of an answer, also of one that has only just ended."""
    await edge.polar.heard(said.request_id)
    return edge.polar.feedback(said.request_id, thumbs=said.thumbs, metric=said.metric)


def warn_if_cut(wanted_tokens: int, given_tokens: int) -> None:
    """Say once in the log that the context is shorter than configured."""
    if given_tokens < wanted_tokens:
        log.warning(
            "model.context_tokens = %d was cut to %d: the model was trained on no more",
            wanted_tokens,
            given_tokens,
        )


def _recorded(
    edge: Edge, ask: Callable[[Request], AsyncGenerator[Event, None]]
) -> Callable[[Request], AsyncGenerator[Event, None]]:
    """`ask` that notes each use of an adapter in the usage log."""
    most_bytes = edge.config.serve.usage_log_bytes
    usage = UsageLog(edge.home / USAGE, most_bytes=most_bytes)
    sizes: dict[str, int] = {}

    def note(route: Route, tenant: str) -> None:
        for share in route.shares:
            if share.digest not in sizes:
                sizes.update((row.digest, row.n_bytes) for row in edge.cache.snapshot())
            if n_bytes := sizes.get(share.digest, 0):
                usage.add(
                    at_s=time.time(),
                    digest=share.digest,
                    n_bytes=n_bytes,
                    load_ms=edge.cache.load_ms(share.digest),
                    tenant=tenant,
                )

    async def recorded(request: Request) -> AsyncGenerator[Event, None]:
        async with aclosing(ask(request)) as events:
            async for event in events:
                if isinstance(event, Started):
                    note(event.route, request.tenant)
                yield event

    return recorded


def hot_answers(edge: Edge, ask: Callable[[Request], AsyncGenerator[Event, None]]) -> HotAnswers:
    """`ask` with the memory for public answers that the configuration gives it."""
    config = edge.config.serve
    return HotAnswers(
        ask,
        judges=Judges(
            inspect=lambda request: edge.gate.inspect(request.texts(), tenant=request.tenant),
            choose=edge.router.choose,
            count_prompt=lambda request: len(edge.parts.encode(request)),
            embed=edge.embedding,
        ),
        model_digest=edge.engine.info.digest,
        most_bytes=config.hot_answers_bytes,
        ttl_s=config.hot_answers_ttl_s,
        cosine=config.hot_answers_cosine,
    )


def versions(edge: Edge) -> dict[str, object]:
    """What runs here: Floe, the library's build, the model and its digest."""
    info, library = edge.engine.info, edge.engine.library
    return {
        "floe": __version__,
        "llama_cpp": library.layout.build,
        "model": info.name,
        "model_sha256": info.digest,
        "tokenizer_sha256": info.tokenizer_digest,
        "cloud": edge.parts.cloud.name if edge.parts.cloud else None,
        "detectors": list(edge.gate.detector_names),
    }


def counters(edge: Edge) -> Mapping[str, float]:
    """Totals and gauges of the adapter cache, the cloud's client and the router; open sessions."""
    renamed = {
        f"adapter_{k}" if k in GAUGES else f"adapter_{k}_total": float(v)
        for k, v in asdict(edge.cache.counters()).items()
    }
    cloud = edge.parts.cloud
    asked = cloud.counters().figures() if isinstance(cloud, LogitCloud | OpenAICloud) else {}
    routed = {**edge.router.counters(), **edge.polar.counters()}
    return {**renamed, **asked, **routed, "engine_open_sessions": float(edge.engine.open_sessions)}


def figures(edge: Edge) -> Sequence[Figure | Spread]:
    """How long loads took, what tenants have of the adapter memory, and what power tells."""
    loads = edge.cache.load_times()
    spread = Spread(
        name="adapter_load_seconds",
        bounds=[ms / 1000 for ms in loads.upper_ms if math.isfinite(ms)],
        counts=list(accumulate(loads.counts))[: sum(map(math.isfinite, loads.upper_ms))],
        n=sum(loads.counts),
        total=loads.sum_ms / 1000,
    )
    known = {DEFAULT, *edge.config.tenants}
    by_tenant = {t: f for t, f in edge.cache.by_tenant().items() if t in known}
    tenants = [one for t, f in sorted(by_tenant.items()) for one in _of_tenant(t, f)]
    return [spread, *tenants, *power_figures(edge.power)]


def power_figures(power: Power | None) -> Sequence[Figure]:
    """Energy under its label, clocks, goals: what is not known has no figure."""
    if power is None:
        return ()
    info = Figure(name="power_info", value=1.0, labels=power.info)
    told = power.listener.readings()
    return [info, *(Figure(name=r.name, value=float(r.value), labels=r.labels) for r in told)]


def _of_tenant(tenant: str, found: TenantFigures) -> Sequence[Figure]:
    named = {
        "tenant_adapter_hits_total": found.hits,
        "tenant_adapter_misses_total": found.misses,
        "tenant_adapter_refusals_total": found.refusals,
        "tenant_adapter_wait_seconds_total": found.wait_ms / 1000,
        "tenant_adapter_longest_wait_seconds": found.longest_wait_ms / 1000,
        "tenant_adapter_resident_bytes": found.resident_bytes,
        "tenant_adapter_guaranteed_bytes": found.guaranteed_bytes,
    }
    return [Figure(name=n, value=float(v), labels={"tenant": tenant}) for n, v in named.items()]


def model_records(edge: Edge) -> list[ModelRecord]:
    """auto, the base, the embedding, then every adapter with the state the engine gives it."""
    base = edge.engine.info
    records = [
        ModelRecord(id=AUTO, kind="auto", parent=base.name, description="routed by content"),
        ModelRecord(id=base.name, kind="base", root=base.name, digest=base.digest, resident=True),
        ModelRecord(id=EMBEDDING, kind="embedding", digest=edge.embedding.digest),
    ]
    facts = {s.manifest.name: s.manifest for s in edge.store.list()}
    for row in edge.cache.snapshot():
        manifest = facts.get(row.name)
        records.append(
            ModelRecord(
                id=row.name,
                kind="adapter",
                created_s=_epoch_s(manifest.created_at) if manifest else 0,
                root=row.name,
                parent=base.name,
                digest=row.digest,
                state=row.state,
                reason=row.reason,
                resident=row.state == "ready",
                pins=row.pins,
                description=manifest.description if manifest else "",
                rank=row.rank or None,
                tier=row.tier,
                n_bytes=row.n_bytes or None,
                fit=row.fit if row.n_bytes else None,
                last_used_s=row.last_used_s,
                is_pinned=row.is_pinned,
            )
        )
    return records


def _epoch_s(created_at: str) -> int:
    return int(datetime.fromisoformat(created_at).timestamp())
