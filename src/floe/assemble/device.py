"""A device with everything a request needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from floe.adapters.cache import AdapterCache
from floe.adapters.store import AdapterStore
from floe.answer import Parts
from floe.assemble.adapters import keep_policy, open_cache, open_policy, open_source, open_store
from floe.assemble.cloud import open_cloud
from floe.assemble.fusion import open_fuser
from floe.assemble.models import chat_format, open_embedding, open_engine
from floe.assemble.names import LEDGER
from floe.assemble.privacy import open_gate
from floe.assemble.routing import open_polar, open_router
from floe.core.config import Config, Secrets
from floe.core.timing import unheard
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.models.sources import Progress
from floe.polar import PolarManager
from floe.power.build import Power, open_power
from floe.privacy.gate import Gate
from floe.privacy.guard import guarded
from floe.privacy.ledger import EgressLedger
from floe.privacy.masked import for_cloud
from floe.routing.embed import StaticEmbedding
from floe.routing.router import Router


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A device with everything a request needs."""

    config: Config
    home: Path
    engine: LlamaCppEngine
    store: AdapterStore
    cache: AdapterCache[LlamaAdapter]
    gate: Gate
    router: Router
    polar: PolarManager[LlamaAdapter]
    embedding: StaticEmbedding
    ledger: EgressLedger | None
    parts: Parts
    power: Power | None = None

    async def close_cloud(self) -> None:
        """Give the cloud's connections back."""
        if self.parts.cloud is not None:
            await self.parts.cloud.close()


@contextmanager
def edge(
    config: Config, secrets: Secrets, *, home: Path, progress: Progress | None = None
) -> Iterator[Edge]:
    """Everything on the device, freed at the end of the block."""
    with ExitStack() as stack:
        engine = open_engine(config.model, home=home, progress=progress)
        stack.callback(engine.close)
        store = open_store(config, engine, home=home)
        ledger = EgressLedger(path=home / LEDGER) if config.privacy.ledger else None
        if ledger is not None:
            stack.callback(ledger.close)
        source = open_source(config, engine, store, home=home)
        policy = open_policy(config.adapters.policy, home=home)
        cache, host = open_cache(config, engine, source, home=home, policy=policy)
        stack.callback(host.close)
        stack.callback(keep_policy, policy, home=home)
        # The gate takes the embedding that is on disk, so that comes first.
        embedding = open_embedding(home=home, progress=progress)
        gate = open_gate(config, home=home)
        router = open_router(config, engine, source, embedding, cache, home=home)
        stack.callback(router.close)
        cloud = open_cloud(
            config.cloud,
            secrets,
            ledger,
            tokenizer_digest=engine.info.tokenizer_digest,
            fusion=config.fusion,
        )
        polar = open_polar(config, router, cache, source)
        power = stack.enter_context(
            open_power(
                config.power,
                home=home,
                has_cloud=cloud is not None,
                eos_ids=tuple(engine.info.eos_ids),
            )
        )
        engine.hear_steps(power.listener.on_step)
        stack.callback(engine.hear_steps, unheard)
        parts = Parts(
            gate=gate,
            router=router,
            adapters=cache,
            engine=engine,
            encode=chat_format(engine).encode,
            cloud=cloud,
            guard=guarded,
            mask=for_cloud,
            fuse=open_fuser(config, engine, cloud, home=home),
            learn=polar.learn,
            watch=power.listener.watch,
            spare=power.spare,
        )
        yield Edge(
            config=config,
            home=home,
            engine=engine,
            store=store,
            cache=cache,
            gate=gate,
            router=router,
            polar=polar,
            embedding=embedding,
            ledger=ledger,
            parts=parts,
            power=power,
        )
