"""An assembled edge as the record that the HTTP door serves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict
from datetime import datetime

from floe import __version__
from floe.answer import answer
from floe.assemble import EMBEDDING, Edge
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.config import Secrets
from floe.core.request import Request
from floe.core.token import Event
from floe.routing.router import AUTO
from floe.serving.hot_answers import HotAnswers, Judges
from floe.serving.service import Embedder, ModelRecord, Service

log = logging.getLogger("floe.serving")


def service_of(edge: Edge, secrets: Secrets) -> Service:
    """Everything `build_app` needs, from one assembled edge."""

    def ask(request: Request) -> AsyncGenerator[Event, None]:
        return answer(request, edge.parts)

    warn_if_cut(edge.config.model.context_tokens, edge.engine.info.context_tokens)
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
        alive=lambda: edge.engine.failure,
        ready=lambda: edge.engine.failure,
        counters=lambda: {**counters(edge), **(hot.counters() if hot else {})},
        api_key=secrets.api_key,
        fingerprint=f"floe-{__version__}-{edge.engine.info.digest[:12]}",
    )


def warn_if_cut(wanted_tokens: int, given_tokens: int) -> None:
    """Say once in the log that the context is shorter than configured."""
    if given_tokens < wanted_tokens:
        log.warning(
            "model.context_tokens = %d was cut to %d: the model was trained on no more",
            wanted_tokens,
            given_tokens,
        )


def hot_answers(edge: Edge, ask: Callable[[Request], AsyncGenerator[Event, None]]) -> HotAnswers:
    """`ask` with the memory for public answers that the configuration gives it."""
    config = edge.config.serve
    return HotAnswers(
        ask,
        judges=Judges(
            inspect=edge.gate.inspect,
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
    """Totals and gauges of the adapter cache and the cloud's client, and open sessions."""
    out = {f"adapter_{k}": float(v) for k, v in asdict(edge.cache.counters()).items()}
    totals = ("hits", "misses", "coalesced", "evictions", "failures", "mixes", "load_ms")
    named = {f"adapter_{t}": f"adapter_{t}_total" for t in totals}
    renamed = {named.get(k, k): v for k, v in out.items()}
    cloud = edge.parts.cloud
    asked = cloud.counters().figures() if isinstance(cloud, LogitCloud | OpenAICloud) else {}
    return {**renamed, **asked, "engine_open_sessions": float(edge.engine.open_sessions)}


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
            )
        )
    return records


def _epoch_s(created_at: str) -> int:
    return int(datetime.fromisoformat(created_at).timestamp())
