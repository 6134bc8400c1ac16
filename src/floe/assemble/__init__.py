"""Configuration to concrete parts: the only place that chooses classes."""

from __future__ import annotations

from floe.assemble.adapters import (
    keep_policy,
    open_cache,
    open_policy,
    open_source,
    open_store,
    open_trust,
    policy_state,
)
from floe.assemble.cloud import open_cloud
from floe.assemble.device import Edge, edge
from floe.assemble.fusion import open_weights
from floe.assemble.models import chat_format, model_files, open_embedding, open_engine, run_f32
from floe.assemble.names import (
    CACHE,
    EMBEDDING,
    FUSION,
    LEDGER,
    NER,
    ROUTING,
    STAND_IN,
    TRUST,
    cpu_count,
)
from floe.assemble.privacy import open_gate
from floe.assemble.routing import open_polar, open_router

__all__ = [
    "CACHE",
    "EMBEDDING",
    "FUSION",
    "LEDGER",
    "NER",
    "ROUTING",
    "STAND_IN",
    "TRUST",
    "Edge",
    "chat_format",
    "cpu_count",
    "edge",
    "keep_policy",
    "model_files",
    "open_cache",
    "open_cloud",
    "open_embedding",
    "open_engine",
    "open_gate",
    "open_polar",
    "open_policy",
    "open_router",
    "open_source",
    "open_store",
    "open_trust",
    "open_weights",
    "policy_state",
    "run_f32",
]
