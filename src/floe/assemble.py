"""Configuration to concrete parts: the only place that chooses classes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from floe.adapters.cache import AdapterCache
from floe.adapters.epochs import EpochController, EpochSettings
from floe.adapters.host import HostMemory
from floe.adapters.mix import MixCache
from floe.adapters.pinned import check_pinned
from floe.adapters.policies import make_policy
from floe.adapters.policy import ReplacementPolicy
from floe.adapters.remote import Remote
from floe.adapters.remote_store import RemoteStore
from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.answer import Cloud, Fuse, Parts
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.adapter import Centroid
from floe.core.advice import FOREIGN
from floe.core.config import CloudConfig, Config, FusionConfig, ModelConfig, Secrets
from floe.core.errors import BadConfig, NotFound
from floe.core.files import atomic_write, safe_name
from floe.core.timing import unheard
from floe.engine.base import FloatArray
from floe.engine.chat import ChatFormat
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.longer import LongerMaps
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.fusion.weigh import Network
from floe.fusion.weights import Weights, find_weights, load_weights
from floe.models.cache import PulledModel
from floe.models.pull import available, ensure
from floe.models.sources import Progress
from floe.polar import PolarManager
from floe.power.build import Power, open_power
from floe.privacy.build import build_gate
from floe.privacy.gate import Gate
from floe.privacy.guard import guarded
from floe.privacy.ledger import EgressLedger
from floe.privacy.masked import egress_reason, for_cloud
from floe.routing.embed import StaticEmbedding, shipped_background
from floe.routing.general import shipped_general
from floe.routing.learner import Learner
from floe.routing.router import Router
from floe.routing.state import keep_aside

log = logging.getLogger("floe")

EMBEDDING = "wordllama-256"
NER = "rampart-ner"
LEDGER = "egress.jsonl"
CACHE = "cache"
FUSION = "fusion"
ROUTING = "routing"
REFRESH_S = 300.0
"""How often the list of a remote is read again."""
STAND_IN = "qwen2.5-coder-0.5b-instruct"


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


def open_engine(
    config: ModelConfig, *, home: Path, progress: Progress | None = None
) -> LlamaCppEngine:
    """The engine for a model's name, reference or path, pulled first if need be.

    Raises:
        NotFound, PullFailed, BadModel, Missing: with what to do.
    """
    pulled = model_files(config.name, home=home, progress=progress)
    return LlamaCppEngine(
        pulled.files["model"],
        name=pulled.name,
        digest=pulled.digest,
        names={pulled.name, *pulled.base_names},
        threads=config.threads,
        context_tokens=config.context_tokens,
        max_contexts=config.max_contexts,
        sessions_per_context=config.sessions_per_context,
    )


def model_files(name: str, *, home: Path, progress: Progress | None = None) -> PulledModel:
    """A model on disk, by name, reference or path. A GGUF path is used where it lies."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return PulledModel(name=path.stem, files={"model": path}, digest="")
    pulled = ensure(name, home=home, progress=progress)
    if "model" not in pulled.files:
        raise NotFound(f"{name!r} is not a language model; known ones: floe pull --list")
    return pulled


def open_store(config: Config, engine: LlamaCppEngine, *, home: Path) -> AdapterStore:
    """The adapter store of this model, with the shipped adapters put in once."""
    root = _store_root(config, engine, home=home)
    store = AdapterStore(root, engine.info, reserved={EMBEDDING})
    if config.adapters.shipped:
        _put_in_shipped(store, engine, root / "shipped.json")
    return store


def _store_root(config: Config, engine: LlamaCppEngine, *, home: Path) -> Path:
    folder = Path(config.adapters.folder) if config.adapters.folder else home / "adapters"
    return folder.expanduser() / safe_name(engine.info.name, what="model")


def open_source(
    config: Config, engine: LlamaCppEngine, store: AdapterStore, *, home: Path
) -> AdapterStore | RemoteStore:
    """The store as it is served from: with the configured remote behind it, if there is one.

    Raises:
        Missing: the remote needs a package that is not installed.
        BadConfig: adapters.remote cannot be read as a URL, or adapters.pinned cannot be kept.
    """
    adapters = config.adapters
    source: AdapterStore | RemoteStore = store
    if adapters.remote:
        source = RemoteStore(
            local=store,
            remote=Remote(adapters.remote),
            folder=_store_root(config, engine, home=home) / "remote",
            model=engine.info,
            disk_bytes=adapters.disk_bytes or 10 * adapters.budget_bytes,
            pinned=adapters.pinned,
        )
    guaranteed = sum(t.guaranteed_bytes for t in config.tenants.values())
    check_pinned(adapters.pinned, source.entries(), room_bytes=adapters.budget_bytes - guaranteed)
    return source


def policy_state(home: Path, policy: str) -> Path:
    """Where what a replacement policy learned is kept; `floe cache fit` writes it."""
    return home / CACHE / f"{policy}.json"


def open_policy(name: str, *, home: Path) -> ReplacementPolicy:
    """The replacement policy, going on from what it learned before, if that was kept.

    A state that cannot be used, such as an older version's, is put aside with a warning.

    Raises:
        BadConfig: no policy of that name.
    """
    policy, path = make_policy(name), policy_state(home, name)
    if path.is_file():
        try:
            policy.restore(json.loads(path.read_bytes()))
        except (BadConfig, ValueError, AttributeError) as error:
            policy, aside = make_policy(name), keep_aside(path)
            log.warning("%s: %s. It is not used, and kept as %s", path, error, aside.name)
    return policy


def keep_policy(policy: ReplacementPolicy, *, home: Path) -> None:
    """Write down what the policy learned, if anything, for the next start.

    What could not be read again is not written; that and a full disk are said in the log.
    """
    try:
        if state := policy.state():
            data = json.dumps(state, allow_nan=False).encode()
            make_policy(policy.name).restore(json.loads(data))
            with atomic_write(policy_state(home, policy.name)) as file:
                file.write(data)
    except (BadConfig, ValueError, TypeError, OSError) as error:
        log.warning("what the cache policy learned is not kept: %s", type(error).__name__)


def open_cache(
    config: Config,
    engine: LlamaCppEngine,
    source: AdapterStore | RemoteStore,
    *,
    home: Path,
    policy: ReplacementPolicy | None = None,
) -> tuple[AdapterCache[LlamaAdapter], HostMemory]:
    """The adapter cache as configured, and the host memory to be closed after it.

    Raises:
        BadConfig: a policy of that name is not known, or guarantees exceed the budget.
    """
    adapters = config.adapters
    host = HostMemory(budget_bytes=adapters.host_bytes)
    cache: AdapterCache[LlamaAdapter] = AdapterCache(
        store=source,
        load=engine.load_adapter,
        unload=engine.unload_adapter,
        budget_bytes=adapters.budget_bytes,
        policy=policy or open_policy(adapters.policy, home=home),
        mix=MixCache(
            folder=home / "mixes" / engine.info.digest[:16],
            tensors=lambda digest: source.tensors(source.find("", digest)),
            max_bytes=4 * adapters.budget_bytes,
        ),
        host=host,
        tenants=config.tenants,
        pinned=adapters.pinned,
        prefetch=adapters.prefetch,
        wait_ms=adapters.wait_ms,
        max_overtaken=adapters.max_overtaken,
    )
    return cache, host


def _put_in_shipped(store: AdapterStore, engine: LlamaCppEngine, marker: Path) -> None:
    """Add each shipped adapter made for this base, unless it was put in before (and removed)."""
    done = set(json.loads(marker.read_text())) if marker.is_file() else set()
    fits = [f for f in shipped() if f.name not in done and _declared_base(f) in engine.info.names]
    for folder in fits:
        store.add(folder)
    if fits:
        with atomic_write(marker) as file:
            file.write(json.dumps(sorted(done | {f.name for f in fits})).encode())


def _declared_base(folder: Path) -> str:
    declared = json.loads((folder / "adapter_config.json").read_text())
    return str(declared["base_model_name_or_path"]).rsplit("/", 1)[-1].lower()


def open_cloud(
    config: CloudConfig,
    secrets: Secrets,
    ledger: EgressLedger | None,
    *,
    tokenizer_digest: str = "",
    fusion: FusionConfig | None = None,
) -> Cloud | None:
    """The client for the configured endpoint; None when there is none.

    `fusion` says how long tokens wait: questions are tried again no longer than that.
    """
    waits = fusion or FusionConfig()

    def on_send(destination: str, payload: bytes, request_id: str) -> None:
        if ledger is not None:
            ledger.record(destination, payload, egress_reason(), request_id)

    if config.kind == "none":
        return None
    if config.kind == "floe":
        return LogitCloud(
            url=config.url,
            key=secrets.cloud_key,
            top_k=config.top_k,
            tokenizer_digest=tokenizer_digest,
            connect_timeout_ms=config.connect_timeout_ms,
            budget_ms=waits.token_budget_ms,
            first_budget_ms=waits.first_token_budget_ms,
            on_send=on_send,
        )
    return OpenAICloud(
        url=config.url,
        key=secrets.cloud_key,
        model=config.model,
        connect_timeout_ms=config.connect_timeout_ms,
        budget_ms=waits.token_budget_ms,
        first_budget_ms=waits.first_token_budget_ms,
        continues=config.continues,
        on_send=on_send,
    )


def chat_format(engine: LlamaCppEngine) -> ChatFormat:
    """How this model's prompts are written."""
    vocabulary = engine.vocabulary
    return ChatFormat(
        template=engine.info.chat_template,
        tokenize=lambda text, special: engine.tokenize(text, special=special),
        control_texts=vocabulary.control_texts,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
    )


def open_gate(config: Config, *, home: Path) -> Gate:
    """The privacy gate, with the NER model and the semantic score's embedding when on disk."""
    pulled = {m.name: m for m in available(home)}
    on_disk = pulled.get(NER)
    roles = ("model", "tokenizer", "config")
    files = [on_disk.files[r] for r in roles] if on_disk else None
    paths = (files[0], files[1], files[2]) if files else None
    encoder = None
    if EMBEDDING in pulled and config.privacy.semantic != "off":
        encoder = _embedding(pulled[EMBEDDING])
    return build_gate(config.privacy, paths, tenants=config.tenants, encoder=encoder)


def _embedding(pulled: PulledModel, background: Centroid | None = None) -> StaticEmbedding:
    return StaticEmbedding(
        weights=pulled.files["weights"],
        tokenizer=pulled.files["tokenizer"],
        digest=pulled.digest,
        background=background,
    )


def open_embedding(*, home: Path, progress: Progress | None = None) -> StaticEmbedding:
    """The router's embedding, pulled first if need be."""
    pulled = ensure(EMBEDDING, home=home, progress=progress)
    return _embedding(pulled, shipped_background(pulled.digest))


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
        learner=learner,
        resident=cache.is_resident if cache is not None else lambda _digest: True,
        load_ms=(lambda m: cache.load_ms(m.digest)) if cache is not None else lambda _m: 0.0,
        allowed=lambda tenant: (tenants[tenant].adapters or None) if tenant in tenants else None,
        general=shipped_general(embedding.digest),
    )


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


def run_f32(model: Path, adapter: Path | None, prompts: Sequence[str]) -> list[FloatArray]:
    """Log-probabilities (T, V) of each prompt on an F32 model, for `adapters.verify`."""
    engine = LlamaCppEngine(model, digest="verify", context_tokens=512, kv_f32=True)
    try:
        routes = [(engine.load_adapter(adapter, key="verified"), 1.0)] if adapter else []
        out = []
        for prompt in prompts:
            session = engine.session(routes).result()
            out.append(session.feed(engine.tokenize(prompt), every=True))
            session.close()
        return out
    finally:
        engine.close()


def open_weights(config: Config, engine: LlamaCppEngine, *, home: Path) -> Weights | None:
    """What was learned for this SLM: the configured file, else the user's own, else the shipped.

    None when there is none. `.gate.is_sure` is what `fusion.cloud_share` asks for.

    Raises:
        BadConfig: a file that cannot be used, or `cloud_share` below 1 and nothing was learned.
    """
    fusion, info = config.fusion, engine.info
    path: Path | None = Path(fusion.weights).expanduser()
    if fusion.weights in ("auto", "off"):
        path = find_weights(home / FUSION, info.digest)
    if path is None:
        if fusion.cloud_share < 1.0:
            raise BadConfig(
                "fusion.cloud_share needs a learned gate, and there is none for this model; learn "
                "one with: floe fusion fit TEXTFILE",
                param="fusion.cloud_share",
            )
        return None
    return load_weights(
        path,
        slm=info.digest,
        slm_tokenizer=info.tokenizer_digest,
        cloud_share=fusion.cloud_share,
        other_weight=fusion.weight,
    )


def _road(cloud: Cloud | None) -> Callable[[], Network] | None:
    """How the road to a logit service is now, for the learned weight."""
    if not isinstance(cloud, LogitCloud):
        return None

    def network() -> Network:
        counted = cloud.counters()
        return Network(round_trip_ms=counted.round_trip_p95_ms, loss=counted.loss_share)

    return network


def _fuser(config: Config, engine: LlamaCppEngine, cloud: Cloud | None, *, home: Path) -> Fuse:
    """The cloud scores the SLM's drafts, or where it cannot, the SLM checks the cloud's text."""
    info = engine.info
    pieces = [engine.token_bytes(t) for t in range(info.n_vocab)] if config.cloud.url else []
    limits = Limits(
        budget_ms=config.fusion.token_budget_ms, first_budget_ms=config.fusion.first_token_budget_ms
    )
    maps = LongerMaps(
        own_tokenizer=info.tokenizer_digest, n_vocab=info.n_vocab, folder=home / FUSION
    )
    alignment = Alignment(
        token_bytes=pieces,
        eos_ids=info.eos_ids,
        longer=maps,
        tokenizer=FOREIGN if config.cloud.kind == "openai" else "",
    )
    if config.cloud.kind == "openai":
        return CloudDraftsFuser(
            weight=config.fusion.weight,
            limits=limits,
            alignment=alignment,
            eos_ids=info.eos_ids,
            token_bytes=engine.token_bytes,
            tokenize=lambda data: engine.tokenize(data.decode("utf-8", "ignore")),
        )
    learned = open_weights(config, engine, home=home)
    by_hand = config.fusion.weights == "off" or config.fusion.weight in (0.0, 1.0)
    gate = learned.gate if learned is not None and config.fusion.cloud_share < 1.0 else None
    return SpeculativeFuser(
        weight=config.fusion.weight if learned is None or by_hand else learned.predictor,
        limits=limits,
        alignment=alignment,
        eos_ids=info.eos_ids,
        token_bytes=engine.token_bytes,
        is_sure=gate.is_sure if gate is not None else None,
        network=_road(cloud),
    )


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
            fuse=_fuser(config, engine, cloud, home=home),
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


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
