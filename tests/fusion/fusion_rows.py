"""Small recordings and rows for the tests of what is learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from floe.core.advice import Advice, Candidate
from floe.fusion.evaluate import Rows
from floe.fusion.features import EDGE_NAMES, NAMES
from floe.fusion.net import Net
from floe.fusion.recording import Recording, record, spoken

PIECES = (b"a", b"b", b" ", b"\n", b"\n ", b"\n  ", b"ab", b"")
EOS = frozenset({7})
CLOUD_WORDS = (b"a", b"b", b" ", b"\n", b"ab", b"b\n", b"  ")
FACTS = {"slm": "s" * 64, "slm_tokenizer": "own", "cloud_tokenizer": "other", "adapter": ""}


def log_probs(rng: np.random.Generator, n: int, sharp: float = 2.0) -> np.ndarray:
    logits = rng.normal(size=n) * sharp
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def advice_of(rng: np.random.Generator, offset: int, tokenizer: str = "") -> Advice:
    logs = np.sort(log_probs(rng, len(CLOUD_WORDS) + 1))[::-1]
    order = rng.permutation(len(CLOUD_WORDS))
    found = [
        Candidate(data=CLOUD_WORDS[i], log_prob=float(x)) for i, x in zip(order, logs, strict=False)
    ]
    end = Candidate(data=b"", log_prob=float(logs[-1]), end=True)
    return Advice(offset_bytes=offset, candidates=(*found, end), tokenizer=tokenizer)


def recording(n_items: int = 8, seed: int = 0, **facts: Any) -> Recording:
    """Answers of a few tokens, with advice at every other byte."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(n_items):
        ids = rng.integers(0, 7, size=6).tolist()
        data = b"".join(PIECES[i] for i in ids)
        made.append(
            spoken(
                name="x" if n % 2 else "y",
                data=data,
                ids=ids,
                log_q_TV=np.stack([log_probs(rng, len(PIECES)) for _ in ids]),
                advices=[advice_of(rng, at, "other") for at in range(0, len(data), 2)],
                llm_log_prob=-4.0,
            )
        )
    return record(made, pieces=PIECES, eos_ids=EOS, facts=FACTS | facts, top_k=6)


def rows(n_items: int = 30, n_places: int = 20, seed: int = 0) -> Rows:
    """The SLM is right where it is sure, the cloud elsewhere."""
    rng = np.random.default_rng(seed)
    n = n_items * n_places
    sure = rng.random(n) < 0.5
    q_T = np.where(sure, 0.9, 0.05) * rng.uniform(0.8, 1.0, n)
    p_T = np.where(sure, 0.05, 0.8) * rng.uniform(0.8, 1.0, n)
    features_TF = np.zeros((n, len(NAMES)))
    features_TF[:, 0] = np.where(sure, 0.2, 2.5) + 0.2 * rng.normal(size=n)
    features_TF[:, 1] = np.where(sure, 0.9, 0.3)
    return Rows(
        names=("x", "y"),
        set_I=(np.arange(n_items) % 2).astype(np.int32),
        bytes_I=np.full(n_items, 60, dtype=np.int32),
        llm_nats_I=np.full(n_items, 20.0),
        item_T=np.repeat(np.arange(n_items), n_places).astype(np.int32),
        log_q_T=np.log(q_T),
        p_T=p_T,
        fused_T=rng.random(n) < 0.9,
        features_TF=features_TF,
        edge_TE=features_TF[:, : len(EDGE_NAMES)].copy(),
    )


def net(names: tuple[str, ...], seed: int = 0, hidden: int = 4) -> Net:
    rng = np.random.default_rng(seed)
    return Net(
        names=names,
        mean_F=np.zeros(len(names)),
        scale_F=np.ones(len(names)),
        hidden_FN=rng.normal(size=(len(names), hidden)),
        hidden_bias_N=rng.normal(size=hidden),
        out_N=rng.normal(size=hidden),
        out_bias=0.1,
    )
