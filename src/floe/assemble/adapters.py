"""The adapter store, its remote, and the cache over them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from floe.adapters.cache import AdapterCache
from floe.adapters.host import HostMemory
from floe.adapters.mix import MixCache
from floe.adapters.pinned import check_pinned
from floe.adapters.policies import make_policy
from floe.adapters.policy import ReplacementPolicy
from floe.adapters.remote import Remote
from floe.adapters.remote_store import RemoteStore
from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.adapters.trust import Trust
from floe.assemble.names import CACHE, EMBEDDING, TRUST
from floe.assemble.tailored import carried_adapters
from floe.core.config import Config
from floe.core.errors import BadConfig
from floe.core.files import atomic_write, safe_name
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.routing.state import keep_aside

log = logging.getLogger("floe")


def open_store(config: Config, engine: LlamaCppEngine, *, home: Path) -> AdapterStore:
    """The adapter store of this model, with the shipped adapters put in once."""
    root = _store_root(config, engine, home=home)
    store = AdapterStore(
        root, engine.info, reserved={EMBEDDING}, trust=open_trust(config, home=home)
    )
    carried = carried_adapters(config.model.name)
    if carried is not None:  # those that were shipped have the base's shape
        _put_in(store, carried, root / "shipped.json")
    elif config.adapters.shipped:
        fits = [f for f in shipped() if _declared_base(f) in engine.info.names]
        _put_in(store, fits, root / "shipped.json")
    return store


def open_trust(config: Config, *, home: Path) -> Trust:
    """Whom this device believes. Raises BadConfig for a trusted key that is none."""
    adapters = config.adapters
    return Trust(home / TRUST, signatures=adapters.signatures, trusted_keys=adapters.trusted_keys)


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
            max_rank=adapters.max_rank,
            max_bytes=adapters.budget_bytes,
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


def _put_in(store: AdapterStore, folders: Iterable[Path], marker: Path) -> None:
    """Add each adapter, unless it was put in before (and removed)."""
    done = set(json.loads(marker.read_text())) if marker.is_file() else set()
    new = [f for f in folders if f.name not in done]
    for folder in new:
        store.add(folder)
    if new:
        with atomic_write(marker) as file:
            file.write(json.dumps(sorted(done | {f.name for f in new})).encode())


def _declared_base(folder: Path) -> str:
    declared = json.loads((folder / "adapter_config.json").read_text())
    return str(declared["base_model_name_or_path"]).rsplit("/", 1)[-1].lower()
