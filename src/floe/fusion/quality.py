"""The flat figures of learned weights on held-out recordings, for the benchmark and the card.

T = places. Recordings are those of scripts/record_fusion.py: `<form>-held_out.npz` and, under the
matching adapter, `<form>-held_out-adapter.npz`, over the same answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadRequest
from floe.fusion.align import Alignment
from floe.fusion.evaluate import (
    Rows,
    bits_per_byte,
    figures,
    gap_interval,
    gap_recovered,
    gated,
    rows_of,
)
from floe.fusion.gate import threshold
from floe.fusion.longer import LongerMaps
from floe.fusion.predictor import entropy_share, oracle_shares, share
from floe.fusion.recording import load
from floe.fusion.weigh import Standing
from floe.fusion.weights import Weights

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def quality(
    folder: Path,
    learned: Weights,
    *,
    form: str = "raw",
    cloud_share: float = 0.5,
    maps: Path = Path(),
) -> dict[str, Any]:
    """Bits per byte and the gap recovered: top-64, top-20, gated, with adapter, baselines, curve.

    A figure with `_adapter` is the adapted SLM fused, against the gap of the plain one.
    `cloud_share_target` was asked of the gate, `cloud_share_quality` came out (bug-log B31).

    Raises:
        BadRequest: no recording, or one of another pair than the weights.
    """
    rows = _rows(folder / f"{form}-held_out.npz", learned, top_k=64, maps=maps)
    few = _rows(folder / f"{form}-held_out.npz", learned, top_k=20, maps=maps)
    weights_T, nats_T = _learned(rows, learned)
    low, high = gap_interval(rows, nats_T)
    return {
        **figures(rows, nats_T),
        "gap_recovered_low": low,
        "gap_recovered_high": high,
        **_gaps(few, _learned(few, learned)[1], "_top20"),
        **_with_adapter(folder / f"{form}-held_out-adapter.npz", rows, few, learned, maps),
        **_baselines(rows, learned),
        **_gated(rows, weights_T, learned, cloud_share),
        "quality_answers": len(rows.bytes_I),
        "quality_places": len(rows.item_T),
    }


def _rows(
    path: Path, learned: Weights, *, top_k: int, maps: Path, standing: Standing | None = None
) -> Rows:
    recording, pair = load(path), learned.pair
    found = (recording.facts.get("slm"), recording.facts.get("cloud_tokenizer"))
    if found != (pair.slm, pair.cloud_tokenizer):
        raise BadRequest(f"{path} is of another pair of models than the fusion weights")
    longer = LongerMaps(
        own_tokenizer=pair.slm_tokenizer, n_vocab=len(recording.pieces), folder=maps
    )
    alignment = Alignment(token_bytes=recording.pieces, eos_ids=recording.eos_ids, longer=longer)
    return rows_of(recording, alignment, top_k=top_k, standing=standing)


def _learned(rows: Rows, learned: Weights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The SLM's shares (T,) and what the fused distribution costs (T,)."""
    weights_T = share(learned.predictor.net(rows.features_TF))
    return weights_T, rows.nats(weights_T)


def _gaps(rows: Rows, nats_T: NDArray[np.float64], end: str) -> dict[str, float]:
    out = {f"gap_recovered{end}": gap_recovered(rows, nats_T)}
    out |= {f"gap_recovered{end}_{n}": gap_recovered(rows, nats_T, name=n) for n in rows.names}
    return out


def _with_adapter(
    path: Path, rows: Rows, few: Rows, learned: Weights, maps: Path
) -> dict[str, float]:
    if not path.is_file():
        return {}
    out: dict[str, float] = {}
    for plain, top_k, end in ((rows, 64, "_adapter"), (few, 20, "_adapter_top20")):
        standing = Standing(route_confidence=1.0)
        adapted = _rows(path, learned, top_k=top_k, maps=maps, standing=standing)
        nats_T = _learned(adapted, learned)[1]
        out |= _gaps(plain, nats_T, end)
        out[f"bits_per_byte_slm{end}"] = bits_per_byte(adapted, -adapted.log_q_T)
        out[f"bits_per_byte_fused{end}"] = bits_per_byte(adapted, nats_T)
    return out


def _baselines(rows: Rows, learned: Weights) -> dict[str, float]:
    """With the constants found on the training rows."""
    q_T = np.exp(rows.log_q_T)
    shares = {
        "fixed": np.full(len(q_T), float(learned.report["fixed_weight"])),
        "entropy_rule": entropy_share(rows.edge_TE[:, 0], **learned.report["entropy_rule"]),
        "oracle": oracle_shares(q_T, rows.p_T),
    }
    out: dict[str, float] = {}
    for name, weights_T in shares.items():
        out |= _gaps(rows, rows.nats(weights_T), f"_{name}")
    return out


def _gated(
    rows: Rows, weights_T: NDArray[np.float64], learned: Weights, cloud_share: float
) -> dict[str, Any]:
    gate = learned.gate
    scores_T = gate.net(rows.edge_TE)
    nats_T, real = gated(rows, weights_T, scores_T, threshold(gate.quantiles, cloud_share))
    curve = []
    for target in SHARES:
        at_T, asked = gated(rows, weights_T, scores_T, threshold(gate.quantiles, target))
        curve.append(
            {
                "target": target,
                "cloud_share": asked,
                "bits_per_byte": bits_per_byte(rows, at_T),
                "gap_recovered": gap_recovered(rows, at_T),
            }
        )
    return {
        **_gaps(rows, nats_T, "_gated"),
        "cloud_share_target": cloud_share,
        "cloud_share_quality": real,
        "quality_curve": curve,
    }
