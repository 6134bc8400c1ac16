"""How exact and how fast updates are added up, beside Flower's FedAvg on the same updates.

Every rate is from received bytes to the finished adapter, on one thread, each side in a process of
its own, in turn, by seconds of the processor (nothing waits, so on a quiet machine they are those
of the clock). The updates are rank-8 adapters on q, k, v and o of SmolLM2's 30 layers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from floe.core.errors import FloeError
from floe.evaluation.processes import environment
from floe.federated import wire
from floe.federated.aggregate.choose import make_aggregator
from floe.federated.products import dense, state_cut
from floe.federated.update import AdapterState, Factors, Update

Say = Callable[[str], None]
Figures = dict[str, Any]
SEED = 11
N_LAYERS = 30
RANK = 8
SHAPES = {"q_proj": (576, 576), "k_proj": (192, 576), "v_proj": (192, 576), "o_proj": (576, 576)}
MIXED_RANKS = (4, 8, 16, 32)
ALPHAS = (8.0, 16.0, 16.0, 64.0)  # alpha / r differs from device to device: 2, 2, 1, 2
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    n_updates: int
    repeats: int
    distinct: int


QUICK = Plan(n_updates=150, repeats=1, distinct=12)
FULL = Plan(n_updates=500, repeats=5, distinct=24)


def federated_speed(full: bool, say: Say = lambda _: None) -> Figures:
    """Errors of aggregation, updates per second, memory growth and bytes of an upload.

    Raises:
        FloeError: a measured process failed, such as when Flower is not installed.
    """
    plan = FULL if full else QUICK
    return {**error_figures(), **upload_figures(), **rate_figures(plan, say=say)}


def error_figures(seed: int = SEED) -> Figures:
    """Relative Frobenius errors against the dense mean, with mixed ranks and unequal alphas.

    `product_error` is the larger of two rounds: one of a few devices, which stays factored, and one
    whose stacked ranks exceed the layer. `factor_mean_error` averages factors cut to the smallest
    rank, as a framework must that knows one rank; `factor_mean_error_one_rank` is on devices
    that all have rank 16, where nothing is cut.
    """
    few, many = _mixed_round(8, seed), _mixed_round(48, seed + 1)
    common = [(_cut(u, min(MIXED_RANKS)), w) for u, w in few]
    same = _mixed_round(8, seed + 2, ranks=(16,))
    return {
        "product_error": max(_error("product-mean", few), _error("product-mean", many)),
        "padding_error": _error("zero-padded", few),
        "factor_mean_error": _error("factor-mean", common, against=few),
        "factor_mean_error_one_rank": _error("factor-mean", same),
        "product_error_one_rank": _error("product-mean", same),
    }


def upload_figures() -> Figures:
    """Bytes of one device's upload in one round, whole frames."""
    rng = np.random.default_rng(SEED)
    update = _update("device-000", _modules(rng), rng)
    return {
        "upload_bytes": len(wire.encode(update)),
        "upload_bytes_8bit": len(wire.encode(update, bits=8)),
    }


def rate_figures(plan: Plan, *, say: Say = lambda _: None) -> Figures:
    """Updates per second of the product mean, the factor mean and Flower, and memory growth.

    The rates leave out hashing on both sides: Flower's SuperLink hashes each object as it comes in,
    Floe's seal the whole frame. `..._with_seal` adds ours. `flower_aggregate_only_per_s` leaves out
    Flower's inflating too, and keeps its reading of arrays.
    """
    with tempfile.TemporaryDirectory(prefix="floe-updates-") as name:
        folder = Path(name)
        write_updates(folder, plan.distinct)
        ours, factors, flower = [], [], []
        for turn in range(plan.repeats):
            ours.append(_ours(folder, plan.n_updates, "product-mean"))
            flower.append(_child("floe.flower.fedavg_baseline", folder, plan.n_updates))
            factors.append(_ours(folder, plan.n_updates, "factor-mean"))
            say(
                f"{turn + 1}/{plan.repeats}: {_rate(ours[-1]):.0f} updates/s, "
                f"Flower {_rate(flower[-1]):.0f}"
            )
        least, most = min(50, plan.n_updates // 3), plan.n_updates
        small = _ours(folder, least, "product-mean")
        large = _ours(folder, most, "product-mean") if plan.repeats == 1 else ours[-1]
    return {
        "n_updates": plan.n_updates,
        "updates_per_s": median(map(_rate, ours)),
        "updates_per_s_with_seal": median(map(_sealed_rate, ours)),
        "updates_per_s_close_s": median(r["close_s"] for r in ours),
        "flower_updates_per_s": median(map(_rate, flower)),
        "flower_aggregate_only_per_s": median(r["n"] / r["aggregate_s"] for r in flower),
        "ratio_vs_flower": median(_rate(a) / _rate(b) for a, b in zip(ours, flower, strict=True)),
        "factor_mean_updates_per_s": median(map(_rate, factors)),
        "factor_mean_updates_per_s_with_seal": median(map(_sealed_rate, factors)),
        "rss_growth_mb": large["peak_mb"] - small["peak_mb"],
        "rss_growth_from": least,
        "rss_growth_to": most,
        "peak_mb": large["peak_mb"],
        "flower_peak_mb": flower[-1]["peak_mb"],
    }


def write_updates(folder: Path, n: int) -> None:
    """`n` different updates as payloads of 32 bits."""
    rng = np.random.default_rng(SEED)
    common = _modules(rng)
    for i in range(n):
        path = folder / f"{i:03d}.update"
        path.write_bytes(wire.encode(_update(f"device-{i:03d}", common, rng)))


def _modules(rng: np.random.Generator) -> dict[str, Factors]:
    return {
        f"model.layers.{layer}.self_attn.{name}": Factors(
            a_RI=rng.standard_normal((RANK, n_in), np.float32) / np.float32(n_in**0.5),
            b_OR=rng.standard_normal((n_out, RANK), np.float32) * np.float32(0.01),
        )
        for layer in range(N_LAYERS)
        for name, (n_out, n_in) in SHAPES.items()
    }


def _update(client: str, common: dict[str, Factors], rng: np.random.Generator) -> Update:
    """An update whose factors are half what all devices learn and half its own."""
    own = _modules(rng)
    modules = {
        name: Factors(a_RI=f.a_RI + own[name].a_RI, b_OR=f.b_OR + own[name].b_OR)
        for name, f in common.items()
    }
    return Update(
        client=client,
        round_number=1,
        state=AdapterState(base_digest="0" * 64, modules=modules),
        n_examples=int(rng.integers(20, 200)),
        metrics={"loss": 1.0},
    )


def _mixed_round(
    n: int, seed: int, *, ranks: Sequence[int] = MIXED_RANKS
) -> list[tuple[Update, float]]:
    """Updates of devices that began with one A and learned partly the same, with weights."""
    rng = np.random.default_rng(seed)
    shapes = {"wide": (96, 160), "tall": (160, 96), "square": (128, 128)}
    top = max(MIXED_RANKS)
    a0 = {k: rng.standard_normal((top, i)) for k, (_, i) in shapes.items()}
    b0 = {k: rng.standard_normal((o, top)) for k, (o, _) in shapes.items()}
    out = []
    for client in range(n):
        rank, alpha = ranks[client % len(ranks)], ALPHAS[client % len(ALPHAS)]
        modules = {}
        for name, (n_out, n_in) in shapes.items():
            a = a0[name][:rank] + 0.3 * rng.standard_normal((rank, n_in))
            b = b0[name][:, :rank] + 0.5 * rng.standard_normal((n_out, rank))
            modules[name] = Factors(
                a_RI=a.astype(np.float32), b_OR=(b * alpha / rank).astype(np.float32)
            )
        state = AdapterState(base_digest="0" * 64, modules=modules)
        update = Update(client=f"d{client}", round_number=1, state=state, n_examples=client + 1)
        out.append((update, float(1 + client % 5)))
    return out


def _error(
    aggregator: str,
    updates: Sequence[tuple[Update, float]],
    *,
    against: Sequence[tuple[Update, float]] | None = None,
) -> float:
    """The error of an aggregate before truncation against the dense mean in float64."""
    total = make_aggregator(aggregator)
    for update, weight in updates:
        total.add(update, weight=weight)
    found = total.close(rank=1 << 20).state
    wanted = updates if against is None else against
    whole = sum(w for _, w in wanted)
    lost, size = 0.0, 0.0
    for name, factors in found.modules.items():
        mean = sum(
            (w / whole)
            * u.state.modules[name].b_OR.astype(np.float64)
            @ u.state.modules[name].a_RI.astype(np.float64)
            for u, w in wanted
        )
        lost += float(np.sum((dense(factors) - mean) ** 2))
        size += float(np.sum(np.square(mean)))
    return float(np.sqrt(lost / size))


def _cut(update: Update, rank: int) -> Update:
    return Update(
        client=update.client,
        round_number=update.round_number,
        state=state_cut(update.state, rank)[0],
        n_examples=update.n_examples,
    )


def _ours(folder: Path, n: int, aggregator: str) -> dict[str, float]:
    return _child("floe.evaluation.federated_speed_worker", folder, n, aggregator)


def _child(module: str, folder: Path, n: int, *more: str) -> dict[str, float]:
    """The figures that a measured process prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), str(n), *more],
        env=environment(bare=False, extra=_ONE_THREAD),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FloeError(f"{module} failed: {done.stderr.strip()[-400:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rate(figures: dict[str, float]) -> float:
    return figures["n"] / figures["seconds"]


def _sealed_rate(figures: dict[str, float]) -> float:
    return figures["n"] / (figures["seconds"] + figures["seal_s"])
