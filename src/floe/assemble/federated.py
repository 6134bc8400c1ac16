"""A federation's concrete choices without torch: where it lies, who may take part, the server.

What a device needs beyond that is in `learning.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from floe.adapters.signature import SigningKey, load_key, new_key, verify
from floe.core.errors import PrivacySpent
from floe.core.files import safe_name
from floe.core.sections import FederatedConfig
from floe.federated import wire
from floe.federated.accountant import epsilon
from floe.federated.aggregate.choose import make_aggregator
from floe.federated.base import Aggregator, Shield
from floe.federated.checks import Expected
from floe.federated.clusters import Clustering, group
from floe.federated.comparable import comparable, direction
from floe.federated.desk import Rules, Spent
from floe.federated.dp_ledger import DpLedger
from floe.federated.layers import layer_shapes, weights_digest
from floe.federated.products import state_difference
from floe.federated.rounds import Opened
from floe.federated.secure_sum import SecureTerms
from floe.federated.settings import TARGETS
from floe.federated.shields.combine import check_shields
from floe.federated.shields.gaussian import ClientDp
from floe.federated.shields.noise_central import NoiseCentral
from floe.federated.shields.noise_distributed import NoiseDistributed
from floe.federated.shields.secagg import FixedPoint
from floe.federated.splits import split_clusters
from floe.federated.start import at_rank
from floe.federated.state import Codec, Memory, StateFolder
from floe.federated.update import AdapterState, Update
from floe.learn import Addition, Grouped, ServerParts

_ROBUST = ("trimmed-mean", "coordinate-median", "multi-krum")


def federation_folder(fed: FederatedConfig, *, home: Path) -> Path:
    """Where a federation's state, keys and reports lie."""
    return home / "federated" / fed.name


def server_folder(fed: FederatedConfig, *, home: Path) -> Path:
    """What the server remembers."""
    return federation_folder(fed, home=home) / "server"


def device_folder(fed: FederatedConfig, *, home: Path) -> Path:
    """What this device remembers: its key, its ledger, its last answer."""
    return federation_folder(fed, home=home) / "devices" / safe_name(fed.device, what="device")


def devices_file(fed: FederatedConfig, *, home: Path) -> Path:
    """The server's file of registered devices."""
    if fed.devices:
        return Path(fed.devices).expanduser()
    return federation_folder(fed, home=home) / "devices.toml"


def device_key(folder: Path) -> SigningKey:
    """The key with which this device signs its updates, made at its first use."""
    path = folder / "device.pem"
    return load_key(path) if path.exists() else new_key(path)


def check_protection(fed: FederatedConfig) -> None:
    """Raise BadConfig where what is asked for would not protect; both ends ask first."""
    noisy = fed.dp in ("central", "distributed")
    names = [f"noise-{fed.dp}"] if noisy else []
    robust = fed.mode == "both" and fed.aggregator in _ROBUST
    check_shields(
        [*names, "quantize"] if fed.upload_bits == 8 else names,
        mode=fed.mode,
        aggregation="robust" if robust else "mean",
        weights="equal" if noisy else "examples",
        secure_sum=fed.secagg,
        grouped_by_updates=fed.clusters != 1,
    )
    if fed.secagg:
        secure_terms(fed)


def secure_terms(fed: FederatedConfig) -> SecureTerms:
    """The terms of secure sums, the same on both ends.

    The range is what a value can be at most: a bounded change is within its norm, a share of noise
    within ten deviations.

    Raises:
        BadConfig: sums of too few.
    """
    reach = fed.clip_updates or FixedPoint().clipping_range
    if fed.dp == "distributed":
        share = NoiseDistributed(terms=client_dp(fed, secret=True)).share_std
        reach = fed.clip_norm + _DEVIATIONS * share
    return SecureTerms(
        rank=fed.rank,
        a_seed=fed.seed,
        least=fed.min_clients,
        fixed=FixedPoint(clipping_range=reach),
    )


_DEVIATIONS = 10.0


def server_parts(
    fed: FederatedConfig,
    *,
    folder: Path,
    base_digest: str,
    shapes: Mapping[str, tuple[int, int]],
    devices: Mapping[str, str],
    repeatable: bool = False,
) -> ServerParts:
    """What a server needs to hold rounds. `devices` are the registered ones' public keys.

    Raises:
        BadConfig: protections that would not protect.
    """
    check_protection(fed)
    codec = codec_of(32)
    state = StateFolder(folder, codec=codec)
    noisy = fed.dp in ("central", "distributed")
    shields = _server_shields(fed, secret=not repeatable)
    central = next((s for s in shields if isinstance(s, NoiseCentral)), None)
    rules = Rules(
        expected=Expected(
            base_digest=base_digest,
            shapes=shapes,
            max_rank=max(*fed.ranks, fed.rank),
            max_norm=fed.max_norm,
        ),
        devices=devices,
        verify=verify,
        codec=codec,
        adapter=state.adapter,
        **({} if central is None else {"on_receipt": central.on_receipt}),
    )
    afford, spend = _server_budget(fed, folder=folder) if noisy else (_anything, _free)
    return ServerParts(
        state=state,
        rules=rules,
        group=partial(_group, fed, state.adapter),
        aggregator=partial(_aggregator, fed),
        weigh=_one if noisy else _by_examples,
        rank=fed.rank,
        shields=shields,
        afford=afford,
        spend=spend,
        fraction=fed.fraction,
        min_clients=fed.min_clients,
        min_members=1 if fed.clusters == 1 else fed.min_members,
        deadline_s=fed.deadline_s,
        seed=fed.seed if repeatable else None,
    )


_MAX_EXAMPLES = 10_000
"""A device counts as if it had at most so many examples: it says itself how many it has."""


def server_base(
    fed: FederatedConfig, model: str, *, home: Path
) -> tuple[str, dict[str, tuple[int, int]]]:
    """The base's digest and its layers' shapes; torch is needed only to unpack a GGUF once.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    folder, digest = Path(fed.base or model).expanduser(), None
    if not folder.is_dir():
        from floe.assemble.learning import find_base

        place = find_base(fed.base or model, home=home)
        folder, digest = place.folder, place.digest
    return digest or weights_digest(folder), layer_shapes(folder, TARGETS)


def _by_examples(update: Update) -> float:
    return float(min(update.n_examples, _MAX_EXAMPLES))


def _one(_update: Update) -> float:
    return 1.0


def codec_of(bits: int) -> Codec:
    """Updates as bytes, with so many bits a value."""
    return Codec(pack=partial(wire.encode, bits=bits), unpack=wire.decode)


def _aggregator(fed: FederatedConfig, addition: Addition) -> Aggregator:
    name = {"freeze-a": "frozen-a", "alternate": "alternating"}.get(fed.mode, fed.aggregator)
    return make_aggregator(
        name,
        round_number=addition.round_number,
        max_hostile=math.floor(fed.byzantine * addition.n_updates),
        start=addition.before,
    )


def _group(
    fed: FederatedConfig,
    adapter: Callable[[str], AdapterState | None],
    updates: Collection[Update],
    memory: Memory,
) -> Grouped:
    """Clusters by task, with the ids of earlier rounds; split where members pull apart."""
    if fed.clusters == 1:
        return Grouped(clusters={"all": tuple(sorted(u.client for u in updates))})
    taken = tuple(updates)  # each reading decodes them anew
    states, common = comparable({u.client: u.state for u in taken}, seed=fed.seed)
    rank = next(iter(states.values())).rank
    kept = {c: s for c, d in memory.adapters.items() if (s := adapter(d)) is not None}
    previous = Clustering.from_json(memory.groups) if memory.groups else None
    found = group(
        states,
        start=common,
        n_clusters=min(fed.clusters, len(states)) or None,
        previous=previous,
        published={c: direction(s, rank=rank, seed=fed.seed) for c, s in kept.items()},
    )
    if not fed.clusters:
        found = split_clusters(found, _changes(fed, adapter, taken, rank), previous=previous)
    return Grouped(clusters={c.id: c.members for c in found.clusters}, memory=found.as_json())


def _changes(
    fed: FederatedConfig,
    adapter: Callable[[str], AdapterState | None],
    updates: Sequence[Update],
    rank: int,
) -> dict[str, AdapterState]:
    """What each device changed against its start, in the `rank` directions that all have."""
    starts = {digest: adapter(digest) for digest in {u.started_from for u in updates}}
    out = {}
    for u in updates:
        if (start := starts[u.started_from]) is not None:
            change = state_difference(u.state, at_rank(start, rank=u.state.rank, seed=fed.seed))
            out[u.client] = direction(change, rank=rank, seed=fed.seed)
    return out


def client_dp(fed: FederatedConfig, *, secret: bool) -> ClientDp:
    """The terms of client-level privacy, the same on both ends."""
    return ClientDp(
        clip_norm=fed.clip_norm,
        noise_multiplier=fed.noise_multiplier,
        min_cohort=fed.min_clients,
        rank=fed.rank,
        a_seed=fed.seed,
        secret=secret,
    )


def _server_shields(fed: FederatedConfig, *, secret: bool) -> tuple[Shield, ...]:
    terms = client_dp(fed, secret=secret)
    if fed.dp == "central":
        return (NoiseCentral(terms=terms),)
    return (NoiseDistributed(terms=terms),) if fed.dp == "distributed" else ()


def _anything(_round_number: int) -> None:
    return None


def _free(_opened: Opened, _accepted: int) -> Spent:
    return Spent()


def _server_budget(
    fed: FederatedConfig, *, folder: Path
) -> tuple[Callable[[int], None], Callable[[Opened, int], Spent]]:
    """Whether another round fits the target, and the reservation of one that is to be published.

    Chance in who is asked is not counted: those who answer are not drawn by chance alone.
    """
    terms = client_dp(fed, secret=True)
    mechanism = terms.mechanism(selected=fed.min_clients, registered=fed.min_clients)
    ledger = DpLedger(
        path=folder / "ledger.jsonl",
        target_epsilon=fed.epsilon,
        delta=fed.delta,
        adjacency="replace_one",
    )

    def afford(round_number: int) -> None:
        spent = ledger.read().mechanisms
        total = epsilon([*spent, mechanism], delta=fed.delta, adjacency="replace_one")
        if not total <= fed.epsilon:
            raise PrivacySpent(
                f"round {round_number} would bring epsilon to {total:.3g}, above the target "
                f"{fed.epsilon:g}; nobody was asked to train. More noise or a higher target fits",
                param="federated.epsilon",
            )

    def spend(opened: Opened, _accepted: int) -> Spent:
        if all(entry.note != opened.nonce for entry in ledger.read().entries):
            ledger.reserve(mechanism, round_number=opened.round_number, note=opened.nonce)
        return Spent(epsilon=ledger.epsilon(), terms=f"{ledger.terms}, one device")

    return afford, spend
