"""Figures of fusion over a recording: bits per byte, the part of the gap closed, share against
quality.

T = places (tokens of the SLM), I = answers, F = features, E = those of the SLM alone. All
probabilities are of the reference's own tokens, by teacher forcing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from floe.fusion.align import Alignment
from floe.fusion.carry import NOTHING, carry_after
from floe.fusion.features import EDGE_NAMES, NAMES, edge_features, features
from floe.fusion.recording import Recording
from floe.fusion.weigh import Seen, Standing

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A recording with the cloud mapped to the SLM's tokens; `p_T` and features where `fused_T`."""

    names: tuple[str, ...]
    set_I: NDArray[np.int32]
    bytes_I: NDArray[np.int32]
    llm_nats_I: Array
    item_T: NDArray[np.int32]
    log_q_T: Array
    p_T: Array
    fused_T: NDArray[np.bool_]
    features_TF: Array
    edge_TE: Array

    def nats(self, weights_T: Array) -> Array:
        """Negative log-likelihood (T,) of the fused distribution with the SLM's shares given."""
        q_T = np.exp(self.log_q_T)
        mixed_T = weights_T * q_T + (1.0 - weights_T) * self.p_T
        floor = np.maximum(mixed_T, 1e-12)
        out: Array = np.where(self.fused_T & (weights_T < 1.0), -np.log(floor), -self.log_q_T)
        return out


def rows_of(
    recording: Recording,
    alignment: Alignment,
    *,
    top_k: int = 64,
    standing: Standing | None = None,
) -> Rows:
    """Walk through every answer as a stream would, with the cloud's `top_k` best candidates.

    What is left of a longer cloud token is carried along, as in `carry.py`.
    """
    n_places = len(recording.id_T)
    p_T, fused_T = np.zeros(n_places), np.zeros(n_places, dtype=bool)
    features_TF = np.zeros((n_places, len(NAMES)))
    edge_TE = np.zeros((n_places, len(EDGE_NAMES)))
    standing = standing or Standing()
    places_of = np.split(np.arange(n_places), np.flatnonzero(np.diff(recording.item_T)) + 1)
    for places in places_of:
        advices = recording.advice_at(int(recording.item_T[places[0]]), top_k=top_k)
        carry = NOTHING
        for t in places.tolist():
            start, token = int(recording.start_T[t]), int(recording.id_T[t])
            log_q_V = recording.edge(t)
            edge_TE[t] = edge_features(log_q_V)
            advice = carry.joined(advices.get(start) if carry.needs_advice else None, start)
            mapped = alignment.mapped(advice, log_q_V) if advice is not None else None
            if advice is not None and mapped is not None:
                seen = Seen(log_q_V=log_q_V, advice=advice, mapped=mapped, standing=standing)
                p_T[t], fused_T[t] = mapped.p_V[token], True
                features_TF[t] = features(seen)
            carry = carry_after(advice, token, recording.pieces[token], alignment)
    return Rows(
        names=recording.names,
        set_I=recording.set_I,
        bytes_I=recording.item_bytes_I,
        llm_nats_I=-recording.llm_log_prob_I,
        item_T=recording.item_T,
        log_q_T=recording.log_q_T.astype(np.float64),
        p_T=p_T,
        fused_T=fused_T,
        features_TF=features_TF,
        edge_TE=edge_TE,
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """Several recordings as one; data sets of the same name are put together."""
    names = tuple(dict.fromkeys(n for p in parts for n in p.names))
    first_item = np.cumsum([0] + [len(p.bytes_I) for p in parts])
    set_I = [np.array([names.index(p.names[s]) for s in p.set_I], dtype=np.int32) for p in parts]
    item_T = [p.item_T + np.int32(n) for p, n in zip(parts, first_item, strict=False)]

    def all_of(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(p, name) for p in parts])

    flat = {
        name: all_of(name)
        for name in (
            "bytes_I", "llm_nats_I", "log_q_T", "p_T", "fused_T", "features_TF", "edge_TE",
        )
    }  # fmt: skip
    return Rows(
        names=names,
        set_I=np.concatenate(set_I),
        item_T=np.concatenate(item_T),
        **flat,  # type: ignore[arg-type]
    )


def bits_per_byte(rows: Rows, nats_T: Array, *, name: str | None = None) -> float:
    """Mean over the bytes of all answers, or of one data set's."""
    of_I = _chosen(rows, name)
    return float(nats_T[of_I[rows.item_T]].sum() / (rows.bytes_I[of_I].sum() * log(2.0)))


def llm_bits_per_byte(rows: Rows, *, name: str | None = None) -> float:
    """The LLM alone, by its own tokens."""
    of_I = _chosen(rows, name)
    return float(rows.llm_nats_I[of_I].sum() / (rows.bytes_I[of_I].sum() * log(2.0)))


def _chosen(rows: Rows, name: str | None) -> NDArray[np.bool_]:
    if name is None:
        return np.ones(len(rows.bytes_I), dtype=bool)
    of_I: NDArray[np.bool_] = rows.set_I == rows.names.index(name)
    return of_I


def gap_recovered(rows: Rows, nats_T: Array, *, name: str | None = None) -> float:
    """(SLM - fused) / (SLM - LLM) in bits per byte; NaN where the LLM is no better than the SLM.

    Above 1 the pair is better than the LLM alone.
    """
    slm = bits_per_byte(rows, -rows.log_q_T, name=name)
    gap = slm - llm_bits_per_byte(rows, name=name)
    return (slm - bits_per_byte(rows, nats_T, name=name)) / gap if gap > 0.0 else float("nan")


def gated(rows: Rows, weights_T: Array, scores_T: Array, least_score: float) -> tuple[Array, float]:
    """Nats (T,) when only places with a score of `least_score` are asked, and their share.

    A sure place takes the SLM's token. What a longer cloud token leaves over is taken as if its
    first place had been asked.
    """
    asked_T = scores_T >= least_score
    return rows.nats(np.where(asked_T, weights_T, 1.0)), float(asked_T.mean())


def share_curve(
    rows: Rows, weights_T: Array, scores_T: Array, shares: Sequence[float]
) -> list[dict[str, float]]:
    """Bits per byte and gap recovered against the share of places asked, best scores first."""
    out = []
    for share in shares:
        least = float(np.quantile(scores_T, 1.0 - share)) if share > 0.0 else np.inf
        nats_T, real = gated(rows, weights_T, scores_T, least)
        out.append(
            {
                "cloud_share": real,
                "bits_per_byte": bits_per_byte(rows, nats_T),
                "gap_recovered": gap_recovered(rows, nats_T),
            }
        )
    return out


def figures(rows: Rows, nats_T: Array) -> dict[str, float]:
    """Flat figures: bits per byte of SLM, LLM and the pair, gap recovered; pooled and by set."""
    out: dict[str, float] = {}
    present = [name for n, name in enumerate(rows.names) if (rows.set_I == n).any()]
    for name in (None, *present):
        end = "" if name is None else f"_{name}"
        out[f"bits_per_byte_slm{end}"] = bits_per_byte(rows, -rows.log_q_T, name=name)
        out[f"bits_per_byte_llm{end}"] = llm_bits_per_byte(rows, name=name)
        out[f"bits_per_byte_fused{end}"] = bits_per_byte(rows, nats_T, name=name)
        out[f"gap_recovered{end}"] = gap_recovered(rows, nats_T, name=name)
    return out


def gap_interval(
    rows: Rows, nats_T: Array, *, seed: int = 0, draws: int = 500
) -> tuple[float, float]:
    """The middle 90 % of the pooled gap recovered when the answers are drawn anew (bootstrap)."""
    n_items = len(rows.bytes_I)

    def by_item(values_T: Array) -> Array:
        sums = np.bincount(rows.item_T, weights=values_T, minlength=n_items)
        return sums.astype(np.float64)

    slm_I, fused_I = by_item(-rows.log_q_T), by_item(nats_T)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        pick = rng.integers(n_items, size=n_items)
        gap = float((slm_I - rows.llm_nats_I)[pick].sum())
        if gap > 0.0:
            found.append(float((slm_I - fused_I)[pick].sum()) / gap)
    if len(found) < 0.95 * draws:  # often no gap at all: its share says nothing
        return float("nan"), float("nan")
    low, high = np.quantile(found, [0.05, 0.95])
    return float(low), float(high)
