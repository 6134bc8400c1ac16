"""`floe bench federated`: exactness, speed, privacy, losses and faults of learning together.

Each part lives in a module of its own and is opened when it runs: they pull torch and Flower in.
The long form writes each part's figures down as soon as it is there, so that a second call goes on
where a stopped one ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floe.core.config import home
from floe.evaluation.federated_page import SURVIVES
from floe.evaluation.machine import commit
from floe.evaluation.parts import Figures, Part, Say, collect

PARTS = (
    Part(name="speed", module="federated_speed", function="federated_speed", extra="fed"),
    Part(name="privacy", module="federated_dp", function="dp_figures", extra="fed,dp,train"),
    Part(name="losses", module="federated_losses", function="loss_figures", extra="fed,train"),
    Part(name="faults", module="federated_faults", function="fault_figures", extra="fed,train"),
)


def federated_benchmark(full: bool, say: Say) -> Figures:
    """Issue 6's figures.

    Raises:
        Missing: a package that a part needs is not installed.
        FloeError: a part failed, or two parts give the same figure.
    """
    path = home() / "bench" / f"federated-{commit() or 'unknown'}.json" if full else None
    figures = collect(PARTS, full=full, say=say, path=path)
    if path is not None:
        path.unlink(missing_ok=True)
    return {**figures, **derived(figures)}


def derived(figures: Mapping[str, Any]) -> Figures:
    """What issue 6 asks of several figures together; None where one was not measured."""

    def less(field: str, other: str) -> float | None:
        a, b = figures.get(field), figures.get(other)
        return None if a is None or b is None else round(a - b, 4)

    clean = figures.get("faults_loss_clean")
    faults = [figures.get(f"faults_loss_{name}") for name, _ in SURVIVES]
    known = [abs(loss - clean) / clean for loss in faults if clean and loss is not None]
    return {
        "fault_loss_worst": max(known) if len(known) == len(faults) else None,
        "clustered_below_fedavg": less("loss_fedavg", "loss_clustered"),
        "clustered_below_local": less("loss_local", "loss_clustered"),
        "padding_above_product": less("padding_error", "product_error"),
        "factor_mean_above_product": less("factor_mean_error", "product_error"),
    }
