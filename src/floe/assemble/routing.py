"""The router, and router and cache learning together."""

from __future__ import annotations

from pathlib import Path

from floe.adapters.cache import AdapterCache
from floe.adapters.epochs import EpochController, EpochSettings
from floe.adapters.remote_store import RemoteStore
from floe.adapters.store import AdapterStore
from floe.assemble.names import ROUTING
from floe.core.config import Config
from floe.core.errors import BadAdapter, Untrusted
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.polar import PolarManager
from floe.routing.embed import StaticEmbedding
from floe.routing.general import shipped_general
from floe.routing.learner import Learner
from floe.routing.router import Router


def open_router(
    config: Config,
    engine: LlamaCppEngine,
    store: AdapterStore | RemoteStore,
    embedding: StaticEmbedding,
    cache: AdapterCache[LlamaAdapter] | None = None,
    *,
    home: Path | None = None,
) -> Router:
    """The router over what is in the store now, without what `cache` knows cannot be loaded.

    With a `home` it goes on from what was learned there, and saves what it learns.
    """
    tenants, learner = config.tenants, None
    if config.routing.learner == "bandit":
        name = f"{engine.info.digest[:16]}.safetensors"
        learner = Learner(
            config=config.routing,
            encoder_digest=embedding.digest,
            embedding_width=embedding.width,
            model=engine.info.digest,
            path=home / ROUTING / name if home is not None else None,
        )
    return Router(
        embedding=embedding,
        adapters=lambda: [s.manifest for s in store.list()],
        base_names=[engine.info.name.lower()],
        config=config.routing,
        fault=cache.fault if cache is not None else lambda _manifest: "",
        refusal=lambda name: _refusal(store, name),
        learner=learner,
        resident=cache.is_resident if cache is not None else lambda _digest: True,
        load_ms=(lambda m: cache.load_ms(m.digest)) if cache is not None else lambda _m: 0.0,
        allowed=lambda tenant: (tenants[tenant].adapters or None) if tenant in tenants else None,
        general=shipped_general(embedding.digest),
    )


def _refusal(store: AdapterStore | RemoteStore, name: str) -> BadAdapter | None:
    """Why the store has that name and does not serve it: broken, or not trusted."""
    entry = next((e for e in store.entries() if e.name == name and e.stored is None), None)
    if entry is None:
        return None
    kind = Untrusted if entry.is_refused else BadAdapter
    return kind(entry.reason, param="model")


def open_polar(
    config: Config,
    router: Router,
    cache: AdapterCache[LlamaAdapter],
    store: AdapterStore | RemoteStore,
) -> PolarManager[LlamaAdapter]:
    """Router and cache learning together; without a learner, or by configuration, no epochs."""
    routing, epochs = config.routing, None
    if routing.learner == "bandit" and routing.epochs != "off":
        epochs = EpochController(EpochSettings(kind=routing.epochs, first=routing.epoch_requests))
    return PolarManager(
        router=router,
        cache=cache,
        sizes=lambda: {s.manifest.digest: s.manifest.file_bytes for s in store.list()},
        miss_cost_per_s=routing.miss_cost_per_s,
        epochs=epochs,
    )
