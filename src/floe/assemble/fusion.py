"""The fuser and what was learned for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from floe.answer import Cloud, Fuse
from floe.assemble.names import FUSION
from floe.cloud.logits import LogitCloud
from floe.core.advice import FOREIGN
from floe.core.config import Config
from floe.core.errors import BadConfig
from floe.engine.llamacpp import LlamaCppEngine
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.longer import LongerMaps
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.fusion.weigh import Network
from floe.fusion.weights import Weights, find_weights, load_weights


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


def open_fuser(config: Config, engine: LlamaCppEngine, cloud: Cloud | None, *, home: Path) -> Fuse:
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
