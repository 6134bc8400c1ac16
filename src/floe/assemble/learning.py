"""Federated learning's concrete choices: the base to train for, a device's parts, a server's.

Opened by `floe fed` alone: it pulls torch in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from floe.assemble.federated import check_protection, client_dp, codec_of, device_key
from floe.assemble.models import model_files
from floe.core.errors import BadConfig
from floe.core.files import sha256_file
from floe.core.sections import FederatedConfig
from floe.federated import wire
from floe.federated.base import Shield
from floe.federated.checkpoints import Checkpoints
from floe.federated.conditions import Conditions, limits_of
from floe.federated.dp_ledger import DpLedger
from floe.federated.examples import read_examples, split_examples
from floe.federated.on_torch.base_model import BaseModel, load_base
from floe.federated.on_torch.dp_sgd import DpSgd
from floe.federated.on_torch.train import LoraTrainer
from floe.federated.residual import QuantizeOnDisk
from floe.federated.rounds import Task
from floe.federated.sampling import Sampling
from floe.federated.settings import TrainSettings
from floe.federated.shields.clip import Clip
from floe.federated.shields.noise_central import NoiseCentral
from floe.federated.shields.noise_distributed import NoiseDistributed
from floe.federated.shields.quantize import Quantize
from floe.federated.start import on_shared_a, with_rest
from floe.federated.state import Outbox
from floe.federated.update import AdapterState, Update
from floe.learn import DeviceParts
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
    from floe.engine.torch_engine import folder_from_gguf  # pulls in more than training needs

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
    check_protection(fed)
    _check_size(fed, base, rank)
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
    conditions = Conditions(
        limits=limits_of(fed),
        # What is spent is not to be lost half-way: a private run waits as long as it takes.
        patience_s=math.inf if fed.dp == "example" else fed.patience_s,
    )
    # A private run is never resumed: its noise would be drawn twice, its budget spent once.
    resumes = fed.dp == "off" and fed.steps > _STEPS_TO_LOSE
    checkpoints = Checkpoints(folder, every_steps=_STEPS_TO_LOSE) if resumes else None
    trainer = LoraTrainer.of_examples(
        base, split, settings=settings, client=name, rule=rule, checkpoints=checkpoints,
        conditions=conditions,
    )  # fmt: skip
    return DeviceParts(
        name=name,
        base_digest=base.digest,
        trainer=trainer,
        rank=rank,
        codec=codec_of(fed.upload_bits),
        sign=device_key(folder).sign,
        outbox=Outbox(folder / "outbox"),
        shields=_device_shields(fed, folder=folder, secret=secret),
        spend=partial(_once_allowed, fed, spend),
        seed=None if secret else fed.seed,
        terms=json.dumps(asdict(fed), sort_keys=True),
    )


def _once_allowed(
    fed: FederatedConfig, spend: Callable[[Task], Mapping[str, float]], task: Task
) -> Mapping[str, float]:
    """Spend only once the device may train.

    Raises:
        Busy: it may not for `patience_s`; nothing was spent.
    """
    Conditions(limits=limits_of(fed), patience_s=fed.patience_s).wait()
    return spend(task)


_STEPS_TO_LOSE = 10
"""A device that is killed in training goes on from at most so many steps before."""


def _check_size(fed: FederatedConfig, base: BaseModel, rank: int) -> None:
    """Raise BadConfig for updates that no server would take, before anything is trained."""
    places = tuple((name, rank, o, i) for name, (o, i) in base.shapes().items())
    n_bytes = wire.payload_bytes(places, bits=fed.upload_bits)
    if n_bytes > wire.MAX_BYTES:
        raise BadConfig(
            f"an update at rank {rank} has {n_bytes} bytes, above the limit of {wire.MAX_BYTES}: "
            "choose a lower rank, or federated.upload_bits = 8",
            param="federated.ranks",
        )


class _SharedRank:
    """Lifts every device's B to the federation's rank over the shared A, so that sums are sums.

    What the start has beyond a device's own rank stays, for the device has not seen it.
    """

    name = "shared-rank"

    def __init__(self, *, rank: int, a_seed: int) -> None:
        self._rank, self._a_seed = rank, a_seed

    def on_device(self, start: AdapterState | None, update: Update, *, seed: int) -> Update:
        """The same change, at the one rank."""
        del seed
        state = on_shared_a(update.state, rank=self._rank, seed=self._a_seed)
        if start is not None:
            whole = on_shared_a(start, rank=self._rank, seed=self._a_seed)
            state = with_rest(state, whole, from_column=update.state.rank)
        return Update(**{**vars(update), "state": state})

    def on_server(self, total: Any, updates: Sequence[str], *, seed: int) -> Any:
        """The total as it is."""
        del updates, seed
        return total


def _device_shields(fed: FederatedConfig, *, folder: Path, secret: bool) -> tuple[Shield, ...]:
    shields: list[Shield] = []
    if fed.mode == "freeze-a":
        shields.append(_SharedRank(rank=fed.rank, a_seed=fed.seed))
    if fed.dp == "central":
        shields.append(NoiseCentral(terms=client_dp(fed, secret=secret)))
    elif fed.dp == "distributed":
        shields.append(NoiseDistributed(terms=client_dp(fed, secret=secret)))
    elif fed.clip_updates:
        shields.append(Clip(clip_norm=fed.clip_updates))
    if fed.upload_bits == 8:
        plain = fed.dp == "off" and fed.mode == "both"
        shields.append(QuantizeOnDisk(folder) if plain else Quantize(feedback=False))
    return tuple(shields)


def _nothing_spent(_task: Task) -> Mapping[str, float]:
    return {}


def _spend_on_device(ledger: DpLedger, rule: DpSgd, steps: int, task: Task) -> Mapping[str, float]:
    """Reserve a round's steps before they are done."""
    ledger.reserve(rule.mechanism(steps), round_number=task.round_number, note=task.nonce)
    return {"epsilon": ledger.epsilon()}
