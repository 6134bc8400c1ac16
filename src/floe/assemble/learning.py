"""Federated learning's concrete choices: the base to train for, a device's parts, a server's.

Opened by `floe fed` alone: it pulls torch in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from floe.adapters.signature import SigningKey, load_key, new_key, verify
from floe.assemble.models import model_files
from floe.core.errors import PrivacySpent
from floe.core.files import safe_name, sha256_file
from floe.core.sections import FederatedConfig
from floe.engine.torch_engine import folder_from_gguf
from floe.federated import wire
from floe.federated.accountant import epsilon
from floe.federated.aggregate.choose import make_aggregator
from floe.federated.base import Aggregator, Shield
from floe.federated.checks import Expected
from floe.federated.clusters import Cluster, Clustering, group
from floe.federated.desk import Rules, Spent
from floe.federated.dp_ledger import DpLedger
from floe.federated.examples import read_examples, split_examples
from floe.federated.on_torch.base_model import BaseModel, base_shapes, folder_digest, load_base
from floe.federated.on_torch.dp_sgd import DpSgd
from floe.federated.on_torch.train import LoraTrainer
from floe.federated.residual import QuantizeOnDisk
from floe.federated.rounds import Opened, Task
from floe.federated.sampling import Sampling
from floe.federated.settings import TARGETS, TrainSettings
from floe.federated.shields.clip import Clip
from floe.federated.shields.combine import check_shields
from floe.federated.shields.gaussian import ClientDp
from floe.federated.shields.noise_central import NoiseCentral
from floe.federated.shields.noise_distributed import NoiseDistributed
from floe.federated.shields.quantize import Quantize
from floe.federated.start import on_shared_a
from floe.federated.state import Codec, Memory, Outbox, StateFolder
from floe.federated.update import AdapterState, Update
from floe.learn import Addition, DeviceParts, Grouped, ServerParts
from floe.models.sources import Progress


@dataclass(frozen=True, kw_only=True)
class BasePlace:
    """A base on disk as a Hugging Face folder; `digest` None = that of its weights."""

    folder: Path
    name: str
    digest: str | None


def find_base(name: str, *, home: Path, progress: Progress | None = None) -> BasePlace:
    """The base that adapters are trained for: a Hugging Face folder, or a model as served.

    `name` is a folder, or a model's name, reference or GGUF path; a GGUF is dequantized once into
    FLOE_HOME/train, and its own digest names the base, so that what is trained fits what is served.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return BasePlace(folder=folder, name=folder.resolve().name, digest=None)
    pulled = model_files(name, home=home, progress=progress)
    gguf = pulled.files["model"]
    digest = pulled.digest or sha256_file(gguf)
    # The publisher's full name first: PEFT's own loaders look for it.
    known = sorted(pulled.base_names, key=lambda n: ("/" not in n, n))
    return BasePlace(
        folder=folder_from_gguf(gguf, home / "train" / digest[:16]),
        name=known[0] if known else pulled.name,
        digest=digest,
    )


def open_base(
    name: str, *, home: Path, n_layers: int | None = None, progress: Progress | None = None
) -> BaseModel:
    """`find_base`, loaded; `n_layers` keeps the first blocks only.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    place = find_base(name, home=home, progress=progress)
    return load_base(place.folder, digest=place.digest, name=place.name, n_layers=n_layers)


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


def train_settings(fed: FederatedConfig) -> TrainSettings:
    """How every device of the federation trains."""
    return TrainSettings(
        mode=fed.mode,
        steps=fed.steps,
        batch=fed.batch,
        accumulate=fed.accumulate,
        learning_rate=fed.learning_rate,
        proximal=fed.proximal,
        max_tokens=fed.max_tokens,
        a_seed=fed.seed,
    )


def device_key(folder: Path) -> SigningKey:
    """The key with which this device signs its updates, made at its first use."""
    path = folder / "device.pem"
    return load_key(path) if path.exists() else new_key(path)


def device_parts(
    fed: FederatedConfig,
    *,
    base: BaseModel,
    folder: Path,
    name: str,
    data: Path,
    rank: int,
    repeatable: bool = False,
) -> DeviceParts:
    """What a device needs to take part. `folder` is its own; `repeatable` draws every number from
    the federation's seed, for simulations alone.

    Raises:
        BadConfig: protections that would not protect. NotFound, BadRequest: no usable examples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    secret = fed.dp != "off" and not repeatable
    split = split_examples(read_examples(data))
    settings, rule, spend = train_settings(fed), None, _nothing_spent
    if fed.dp == "example":
        rate = min(1.0, fed.batch * fed.accumulate / len(split.train))
        rule = DpSgd(
            sampling=Sampling(kind="poisson", rate=rate),
            clip_norm=fed.clip_norm,
            noise_multiplier=fed.noise_multiplier,
            secret=secret,
        )
        ledger = DpLedger(path=folder / "ledger.jsonl", target_epsilon=fed.epsilon, delta=fed.delta)
        spend = partial(_spend_on_device, ledger, rule, fed.steps)
    trainer = LoraTrainer.of_examples(base, split, settings=settings, client=name, rule=rule)
    return DeviceParts(
        name=name,
        base_digest=base.digest,
        trainer=trainer,
        rank=rank,
        codec=_codec(fed.upload_bits),
        sign=device_key(folder).sign,
        outbox=Outbox(folder / "outbox"),
        shields=_device_shields(fed, folder=folder, secret=secret),
        spend=spend,
        seed=None if secret else fed.seed,
    )


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
    codec = _codec(32)
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


def server_base(fed: FederatedConfig, model: str, *, home: Path) -> tuple[str, Mapping[str, Any]]:
    """The base's digest and its layers' shapes; no weights are held in memory."""
    place = find_base(fed.base or model, home=home)
    return place.digest or folder_digest(place.folder), base_shapes(place.folder, TARGETS)


_MAX_EXAMPLES = 10_000
"""A device counts as if it had at most so many examples: it says itself how many it has."""


def _by_examples(update: Update) -> float:
    return float(min(update.n_examples, _MAX_EXAMPLES))


def _one(_update: Update) -> float:
    return 1.0


def _codec(bits: int) -> Codec:
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
    """Clusters by task, with the ids of earlier rounds."""
    if fed.clusters == 1:
        return Grouped(clusters={"all": tuple(sorted(u.client for u in updates))})
    states = {u.client: u.state for u in updates}
    starts = {u.started_from for u in updates}
    found = group(
        states,
        start=adapter(starts.pop()) if len(starts) == 1 else None,
        n_clusters=min(fed.clusters, len(states)) or None,
        previous=_clustering(memory.groups) if memory.groups else None,
        published={c: s for c, d in memory.adapters.items() if (s := adapter(d)) is not None},
    )
    return Grouped(clusters={c.id: c.members for c in found.clusters}, memory=asdict(found))


def _clustering(data: Mapping[str, Any]) -> Clustering:
    """What `asdict` made of a clustering, after JSON."""
    clusters = (Cluster(**{**c, "members": tuple(c["members"])}) for c in data["clusters"])
    return Clustering(**{**data, "clusters": tuple(clusters)})


class _SharedRank:
    """Lifts every device's B to the federation's rank over the shared A, so that sums are sums."""

    name = "shared-rank"

    def __init__(self, *, rank: int, a_seed: int) -> None:
        self._rank, self._a_seed = rank, a_seed

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The same change, at the one rank."""
        del start, seed
        state = on_shared_a(update.state, rank=self._rank, seed=self._a_seed)
        return Update(**{**vars(update), "state": state})

    def on_server(self, total: Any, updates: Sequence[str], *, seed: int) -> Any:
        """The total as it is."""
        del updates, seed
        return total


def _client_dp(fed: FederatedConfig, *, secret: bool) -> ClientDp:
    return ClientDp(
        clip_norm=fed.clip_norm,
        noise_multiplier=fed.noise_multiplier,
        min_cohort=fed.min_clients,
        rank=fed.rank,
        a_seed=fed.seed,
        secret=secret,
    )


def _device_shields(fed: FederatedConfig, *, folder: Path, secret: bool) -> tuple[Shield, ...]:
    shields: list[Shield] = []
    if fed.mode == "freeze-a":
        shields.append(_SharedRank(rank=fed.rank, a_seed=fed.seed))
    if fed.dp == "central":
        shields.append(NoiseCentral(terms=_client_dp(fed, secret=secret)))
    elif fed.dp == "distributed":
        shields.append(NoiseDistributed(terms=_client_dp(fed, secret=secret)))
    elif fed.clip_updates:
        shields.append(Clip(clip_norm=fed.clip_updates))
    if fed.upload_bits == 8:
        plain = fed.dp == "off" and fed.mode == "both"
        shields.append(QuantizeOnDisk(folder) if plain else Quantize(feedback=False))
    check_shields(
        [s.name for s in shields],
        mode=fed.mode,
        aggregation=_aggregation(fed),
        weights="equal" if fed.dp in ("central", "distributed") else "examples",
        secure_sum=fed.secagg,
        grouped_by_updates=fed.clusters != 1,
    )
    return tuple(shields)


def _aggregation(fed: FederatedConfig) -> str:
    robust = ("trimmed-mean", "coordinate-median", "multi-krum")
    return "robust" if fed.mode == "both" and fed.aggregator in robust else "mean"


def _server_shields(fed: FederatedConfig, *, secret: bool) -> tuple[Shield, ...]:
    terms = _client_dp(fed, secret=secret)
    if fed.dp == "central":
        return (NoiseCentral(terms=terms),)
    return (NoiseDistributed(terms=terms),) if fed.dp == "distributed" else ()


def _nothing_spent(_task: Task) -> Mapping[str, float]:
    return {}


def _spend_on_device(ledger: DpLedger, rule: DpSgd, steps: int, task: Task) -> Mapping[str, float]:
    """Reserve a round's steps before they are done."""
    ledger.reserve(rule.mechanism(steps), round_number=task.round_number, note=task.nonce)
    return {"epsilon": ledger.epsilon()}


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
    terms = _client_dp(fed, secret=True)
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
