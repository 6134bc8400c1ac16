"""What two local models say over reference answers: teacher forcing with their own templates.

T = answer tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from floe.assemble import chat_format
from floe.core.advice import Advice, Candidate
from floe.core.request import Message, Request
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.fusion.recording import Spoken, spoken

TOP_K = 64


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question and its reference answer; `name` is the data set's."""

    name: str
    prompt: str
    answer: str


def teacher_forced(
    engine: LlamaCppEngine,
    prompt: str,
    ids: Sequence[int],
    adapters: Sequence[tuple[LlamaAdapter, float]] = (),
) -> NDArray[np.float32]:
    """Log-probabilities (T, V) before each of the answer's tokens, in one session."""
    request = Request(id="record", messages=(Message(role="user", content=prompt),))
    head = chat_format(engine).encode(request)
    session = engine.session(adapters, max_tokens=len(head) + len(ids)).result()
    try:
        first_V = session.feed(head)
        rest = [session.feed(ids[:-1], every=True)] if len(ids) > 1 else []
        return np.concatenate([first_V[None, :], *rest])
    finally:
        session.close()


def advices(
    engine: LlamaCppEngine, ids: Sequence[int], log_p_TV: NDArray[np.float32]
) -> tuple[Advice, ...]:
    """The best TOP_K tokens where the cloud's own tokens begin, as its service would send them."""
    starts = [0, *accumulate(len(engine.token_bytes(t)) for t in ids)]
    eos = engine.info.eos_ids
    out = []
    for start, row_V in zip(starts, log_p_TV, strict=False):
        some = np.argpartition(-row_V, TOP_K)[:TOP_K]
        order = some[np.argsort(-row_V[some], kind="stable")].tolist()
        found = (
            Candidate(
                data=b"" if t in eos else engine.token_bytes(t),
                log_prob=float(row_V[t]),
                end=t in eos,
            )
            for t in order
        )
        out.append(
            Advice(offset_bytes=start, candidates=tuple(c for c in found if c.end or c.data))
        )
    return tuple(out)


def both(slm: LlamaCppEngine, llm: LlamaCppEngine, item: Item) -> Spoken:
    """One answer under the SLM and under the LLM."""
    ids, cloud_ids = slm.tokenize(item.answer), llm.tokenize(item.answer)
    log_p_TV = teacher_forced(llm, item.prompt, cloud_ids)
    said = log_p_TV[np.arange(len(cloud_ids)), cloud_ids].astype(np.float64)
    return spoken(
        name=item.name,
        data=item.answer.encode(),
        ids=ids,
        log_q_TV=teacher_forced(slm, item.prompt, ids),
        advices=advices(llm, cloud_ids, log_p_TV),
        llm_log_prob=float(said.sum()),
    )


def adapted(slm: LlamaCppEngine, item: Item, base: Spoken, adapter: LlamaAdapter) -> Spoken:
    """The same answer with an adapter on the SLM."""
    return spoken(
        name=item.name,
        data=base.data,
        ids=base.ids,
        log_q_TV=teacher_forced(slm, item.prompt, base.ids, [(adapter, 1.0)]),
        advices=base.advices,
        llm_log_prob=base.llm_log_prob,
    )
