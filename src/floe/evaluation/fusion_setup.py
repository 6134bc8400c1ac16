"""Both models of the fusion benchmark, and the ways in which they draw together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from floe.answer import Fuse
from floe.assemble import FUSION, STAND_IN, chat_format, open_engine, open_weights
from floe.core.config import Config, home
from floe.core.sections import FusionConfig, ModelConfig
from floe.engine.llamacpp import LlamaCppEngine
from floe.evaluation.fusion_parts import Side
from floe.evaluation.fusion_runs import Pair
from floe.fusion.align import Alignment
from floe.fusion.gate import SureGate
from floe.fusion.generate import Fuser
from floe.fusion.longer import LongerMaps
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.fusion.weigh import Weigh
from floe.fusion.weights import Weights

UNLIMITED_MS = 60_000.0
CLOUD_SHARE = 0.5
WEIGHT = FusionConfig().weight


@dataclass(frozen=True, kw_only=True)
class Fuses:
    """How each side draws; `gated` is None where no gate was learned for this pair."""

    by_token: Fuse
    speculative: Fuse
    gated: Fuse | None
    bounded: Fuse
    hasty: Fuse
    learned: Weights | None

    def sides(self) -> list[Side]:
        """The sides that are timed, in the order in which they take turns."""
        gated: list[Side] = [("gated", self.gated, True)] if self.gated is not None else []
        exact: list[Side] = [("by_token", self.by_token, True), ("exact", self.speculative, True)]
        return [*exact, *gated, ("slm", self.speculative, False)]


@contextmanager
def open_pair() -> Iterator[tuple[Pair, LlamaCppEngine, Fuses]]:
    """Both engines with one thread each, and how they are joined."""
    edge_engine = open_engine(ModelConfig(threads=1, max_contexts=2), home=home())
    cloud_engine = open_engine(ModelConfig(name=STAND_IN, threads=1, max_contexts=2), home=home())
    try:
        info = edge_engine.info
        alignment = Alignment(
            token_bytes=[edge_engine.token_bytes(t) for t in range(info.n_vocab)],
            eos_ids=info.eos_ids,
            longer=LongerMaps(
                own_tokenizer=info.tokenizer_digest, n_vocab=info.n_vocab, folder=home() / FUSION
            ),
        )
        pair = Pair(
            edge=edge_engine,
            cloud=cloud_engine,
            encode=chat_format(edge_engine).encode,
            encode_cloud=chat_format(cloud_engine).encode,
            alignment=alignment,
        )
        yield pair, edge_engine, fuses_of(edge_engine, alignment)
    finally:
        edge_engine.close()
        cloud_engine.close()


def fuses_of(engine: LlamaCppEngine, alignment: Alignment) -> Fuses:
    """Every way to draw that is measured, with what was learned for the SLM where there is any."""
    learned = open_weights(Config(), engine, home=home())
    weight: float | Weigh = WEIGHT if learned is None else learned.predictor
    gate = None if learned is None else replace(learned.gate, cloud_share=CLOUD_SHARE)
    defaults = Config().fusion
    return Fuses(
        by_token=Fuser(
            weight=weight,
            budget_ms=UNLIMITED_MS,
            first_budget_ms=UNLIMITED_MS,
            alignment=alignment,
            eos_ids=engine.info.eos_ids,
            token_bytes=engine.token_bytes,
        ),
        speculative=speculative(engine, alignment, weight, UNLIMITED_MS, UNLIMITED_MS),
        gated=None
        if gate is None
        else speculative(engine, alignment, weight, UNLIMITED_MS, UNLIMITED_MS, gate=gate),
        bounded=speculative(
            engine, alignment, weight, defaults.token_budget_ms, defaults.first_token_budget_ms
        ),
        hasty=speculative(engine, alignment, weight, 100.0, 100.0),
        learned=learned,
    )


def speculative(
    engine: LlamaCppEngine,
    alignment: Alignment,
    weight: float | Weigh,
    budget_ms: float,
    first_budget_ms: float,
    *,
    gate: SureGate | None = None,
) -> Fuse:
    """Drafts and blocks, with the defaults for all but the waits."""
    return SpeculativeFuser(
        weight=weight,
        limits=Limits(budget_ms=budget_ms, first_budget_ms=first_budget_ms),
        alignment=alignment,
        eos_ids=engine.info.eos_ids,
        token_bytes=engine.token_bytes,
        is_sure=gate.is_sure if gate is not None else None,
    )
