"""Learn the fusion weight and the gate from recorded answers. Plain numpy, seeded.

The loss is the cross-entropy of the fused distribution over reference answers. T = places,
F = inputs, N = hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadRequest
from floe.fusion.evaluate import (
    Rows,
    bits_per_byte,
    figures,
    gap_interval,
    llm_bits_per_byte,
)
from floe.fusion.features import EDGE_NAMES, NAMES
from floe.fusion.gate import quantiles_of
from floe.fusion.net import Net
from floe.fusion.predictor import GRID, entropy_share, oracle_shares, share

Array = NDArray[np.float64]
Loss = Callable[[Array], tuple[float, Array]]
"""Outputs (T,) to the mean loss and its derivative (T,)."""
LEAST_ITEMS = 5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How it is trained; written into the report."""

    seed: int = 17
    hidden: int = 16
    gate_hidden: int = 8
    learning_rate: float = 0.01
    steps: int = 3_000
    check_every: int = 25
    patience: int = 12
    decay: float = 3e-4
    validation_share: float = 0.2
    most_gain_nats: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Both networks, the gate's quantiles, the best fixed weight and the report."""

    net: Net
    gate: Net
    quantiles: tuple[float, ...]
    fixed_weight: float
    report: dict[str, Any]


def fit(rows: Rows, groups_I: Sequence[str], settings: Settings | None = None) -> Fitted:
    """Train on the rows; answers of one group are never on both sides of the validation split.

    Raises:
        BadRequest: too few answers to hold some out.
    """
    s = settings or Settings()
    held_I = _held_out(groups_I, s)
    check_T = held_I[rows.item_T]
    net = fit_weight(rows, ~check_T, check_T, s)
    weights_T = share(net(rows.features_TF))
    gain_T = np.where(rows.fused_T, -rows.log_q_T - rows.nats(weights_T), 0.0)
    gain_T = np.clip(gain_T, -s.most_gain_nats, s.most_gain_nats)
    gate = _train(
        _Start(rows.edge_TE[~check_T], EDGE_NAMES, s.gate_hidden, float(gain_T[~check_T].mean())),
        rows.edge_TE,
        _square(gain_T, ~check_T),
        _square(gain_T, check_T),
        s,
    )
    fixed = best_fixed(rows, ~check_T)
    return Fitted(
        net=net,
        gate=gate,
        quantiles=quantiles_of(gate(rows.edge_TE)),
        fixed_weight=fixed,
        report={
            "texts": len(set(groups_I)),
            **_report(rows, held_I, weights_T, fixed, s),
        },
    )


def fit_weight(
    rows: Rows, train_T: NDArray[np.bool_], check_T: NDArray[np.bool_], s: Settings
) -> Net:
    """The network whose logistic output is the SLM's share."""
    train_T, check_T = train_T & rows.fused_T, check_T & rows.fused_T
    if not train_T.any() or not check_T.any():
        raise BadRequest("the cloud said nothing about these answers; there is nothing to learn")
    return _train(
        _Start(rows.features_TF[train_T], NAMES, s.hidden, 0.0),
        rows.features_TF,
        _cross_entropy(rows, train_T),
        _cross_entropy(rows, check_T),
        s,
    )


def best_fixed(rows: Rows, of_T: NDArray[np.bool_]) -> float:
    """The weight of the grid with the least loss."""
    losses = [float(rows.nats(np.full(len(of_T), w))[of_T].sum()) for w in GRID]
    return GRID[int(np.argmin(losses))]


def best_entropy_rule(rows: Rows, of_T: NDArray[np.bool_]) -> dict[str, float]:
    """The entropy rule's constants with the least loss, from a coarse grid."""
    tried = [
        {"surest": hi, "least_sure": lo, "middle_nats": middle}
        for hi in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        for lo in (0.1, 0.2, 0.3, 0.4)
        for middle in (0.25, 0.5, 1.0, 2.0)
    ]
    losses = [
        float(rows.nats(entropy_share(rows.edge_TE[:, 0], **rule))[of_T].sum()) for rule in tried
    ]
    return tried[int(np.argmin(losses))]


def _held_out(groups_I: Sequence[str], s: Settings) -> NDArray[np.bool_]:
    groups = sorted(set(groups_I))
    if len(groups) < LEAST_ITEMS:
        raise BadRequest(
            f"{len(groups)} different answers are too few to learn from; give {LEAST_ITEMS} or more"
        )
    order = np.random.default_rng(s.seed).permutation(len(groups))
    n_held = max(1, round(s.validation_share * len(groups)))
    held = {groups[i] for i in order[:n_held]}
    return np.array([g in held for g in groups_I])


def _cross_entropy(rows: Rows, of_T: NDArray[np.bool_]) -> Loss:
    q_T, p_T, n = np.exp(rows.log_q_T[of_T]), rows.p_T[of_T], int(of_T.sum())

    def loss(out_T: Array) -> tuple[float, Array]:
        w_T = share(out_T[of_T])
        f_T = np.maximum(w_T * q_T + (1.0 - w_T) * p_T, 1e-9)
        slope_T = np.zeros(len(out_T))
        slope_T[of_T] = -(q_T - p_T) * w_T * (1.0 - w_T) / f_T / n
        return float(-np.log(f_T).mean()), slope_T

    return loss


def _square(target_T: Array, of_T: NDArray[np.bool_]) -> Loss:
    n = int(of_T.sum())

    def loss(out_T: Array) -> tuple[float, Array]:
        off_T = np.where(of_T, out_T - target_T, 0.0)
        return float((off_T**2).sum() / n), 2.0 * off_T / n

    return loss


@dataclass(frozen=True)
class _Start:
    """Training inputs, their names, the hidden width, the first output."""

    rows: Array
    names: tuple[str, ...]
    hidden: int
    bias: float


def _train(start: _Start, rows: Array, loss: Loss, check: Loss, s: Settings) -> Net:
    """Adam over all rows at once; the weights of the best check are returned.

    An input that never changes in training has no say: its weights start, and stay, at 0.
    """
    rng = np.random.default_rng(s.seed)
    spread = start.rows.std(axis=0)
    hidden = rng.normal(size=(len(start.names), start.hidden)) / np.sqrt(len(start.names))
    hidden[spread < 1e-9] = 0.0
    net = Net(
        names=start.names,
        mean_F=start.rows.mean(axis=0),
        scale_F=np.where(spread < 1e-9, 1.0, spread),
        hidden_FN=hidden,
        hidden_bias_N=np.zeros(start.hidden),
        out_N=np.zeros(start.hidden),
        out_bias=start.bias,
    )
    inputs = net.standard(rows)
    values = [net.hidden_FN, net.hidden_bias_N, net.out_N, np.array([net.out_bias])]
    adam, best, bad = _Adam(values, s), (np.inf, values), 0
    for step in range(s.steps):
        out, slopes = _forward_back(inputs, values, loss)
        if step % s.check_every == 0:
            now = check(out)[0]
            if now < best[0] - 1e-6:
                best, bad = (now, [v.copy() for v in values]), 0
            else:
                bad += 1
            if bad > s.patience:
                break
        values = adam.step(values, slopes)
    hidden_FN, hidden_bias_N, out_N, out_bias = best[1]
    return Net(
        names=net.names,
        mean_F=net.mean_F,
        scale_F=net.scale_F,
        hidden_FN=hidden_FN,
        hidden_bias_N=hidden_bias_N,
        out_N=out_N,
        out_bias=float(out_bias[0]),
    )


def _forward_back(inputs: Array, values: list[Array], loss: Loss) -> tuple[Array, list[Array]]:
    hidden_FN, hidden_bias_N, out_N, out_bias = values
    active_TN = np.tanh(inputs @ hidden_FN + hidden_bias_N)
    out_T = active_TN @ out_N + out_bias[0]
    slope_T = loss(out_T)[1]
    back_TN = np.outer(slope_T, out_N) * (1.0 - active_TN**2)
    slopes = [
        inputs.T @ back_TN,
        back_TN.sum(axis=0),
        active_TN.T @ slope_T,
        np.array([slope_T.sum()]),
    ]
    return out_T, slopes


class _Adam:
    """Adam with decoupled weight decay."""

    def __init__(self, values: list[Array], s: Settings) -> None:
        self._s, self._n = s, 0
        self._first = [np.zeros_like(v) for v in values]
        self._second = [np.zeros_like(v) for v in values]

    def step(self, values: list[Array], slopes: list[Array]) -> list[Array]:
        self._n += 1
        out = []
        for i, (value, slope) in enumerate(zip(values, slopes, strict=True)):
            self._first[i] = 0.9 * self._first[i] + 0.1 * slope
            self._second[i] = 0.999 * self._second[i] + 0.001 * slope**2
            first = self._first[i] / (1.0 - 0.9**self._n)
            second = self._second[i] / (1.0 - 0.999**self._n)
            change = first / (np.sqrt(second) + 1e-8) + self._s.decay * value
            out.append(value - self._s.learning_rate * change)
        return out


def _report(
    rows: Rows, held_I: NDArray[np.bool_], weights_T: Array, fixed: float, s: Settings
) -> dict[str, Any]:
    """What was learned, on the validation answers, beside the baselines (bug-log B34)."""
    check_T = held_I[rows.item_T]
    rule = best_entropy_rule(rows, ~check_T)
    part = _part(rows, held_I)
    nats_T = rows.nats(weights_T)[check_T]
    low, high = gap_interval(part, nats_T, seed=s.seed)
    q_T = np.exp(part.log_q_T)
    baselines = {
        "fixed": np.full(len(q_T), fixed),
        "entropy_rule": entropy_share(part.edge_TE[:, 0], **rule),
        "oracle": oracle_shares(q_T, part.p_T),
    }
    return {
        "method": "cross-entropy of the fused distribution, Adam, early stopping",
        "settings": asdict(s),
        "answers": len(held_I),
        "places": len(rows.item_T),
        "validation_answers": int(held_I.sum()),
        "validation": _known(figures(part, nats_T)),
        "validation_gap_recovered_90_percent": [low, high] if np.isfinite(low) else None,
        "validation_bits_per_byte": _known(
            {
                "slm": bits_per_byte(part, -part.log_q_T),
                "llm": llm_bits_per_byte(part),
                "learned": bits_per_byte(part, nats_T),
                **{name: bits_per_byte(part, part.nats(w)) for name, w in baselines.items()},
            }
        ),
        "fixed_weight": fixed,
        "entropy_rule": rule,
    }


def _known(values: dict[str, float]) -> dict[str, float]:
    """Without those that are not a number: JSON has no word for them."""
    return {name: value for name, value in values.items() if np.isfinite(value)}


def _part(rows: Rows, of_I: NDArray[np.bool_]) -> Rows:
    """Only some answers."""
    of_T = of_I[rows.item_T]
    number = np.cumsum(of_I, dtype=np.int32) - np.int32(1)
    return Rows(
        names=rows.names,
        set_I=rows.set_I[of_I],
        bytes_I=rows.bytes_I[of_I],
        llm_nats_I=rows.llm_nats_I[of_I],
        item_T=number[rows.item_T[of_T]].astype(np.int32),
        log_q_T=rows.log_q_T[of_T],
        p_T=rows.p_T[of_T],
        fused_T=rows.fused_T[of_T],
        features_TF=rows.features_TF[of_T],
        edge_TE=rows.edge_TE[of_T],
    )
