"""How often the nearest centroid is the right one, on held-out prompts of stored embeddings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from floe.core.errors import BadModel
from floe.evaluation.routing_worlds import data_file

KINDS = ("domains", "tasks", "tasks_shown")


def accuracy_figures(encoder_digest: str) -> dict[str, Any]:
    """Shares of right ones, each domain or task counting the same (`scripts/routing_vectors.py`).

    `route_accuracy`: seven domains. `route_accuracy_tasks`: 24 instruction-induction tasks from
    the bare input, `_tasks_shown` with three solved examples before it. Ten of these tasks are
    asked about single words and two about pairs of numbers, so bare inputs cannot tell them apart.

    Raises:
        BadModel: the stored embeddings are of another encoder (B35).
    """
    facts = json.loads(data_file("route_vectors.json").read_text("utf-8"))
    if facts["encoder_digest"] != encoder_digest:
        raise BadModel(
            "the stored embeddings of floe bench routing were made with another encoder; make "
            "them again with scripts/routing_vectors.py"
        )
    out: dict[str, Any] = {}
    with data_file("route_vectors.npz").open("rb") as file, np.load(file) as stored:
        for kind in KINDS:
            centroids = stored[f"{kind}_centroids"].astype(np.float32)
            found = (stored[f"{kind}_vectors"].astype(np.float32) @ centroids.T).argmax(axis=1)
            labels = stored[f"{kind}_labels"]
            each = [float(np.mean(found[labels == k] == k)) for k in range(len(centroids))]
            name = "route_accuracy" + kind.removeprefix("domains").replace("tasks", "_tasks")
            out[name] = round(float(np.mean(each)), 4)
            out[f"{name}_prompts"] = len(labels)
            if kind == "domains":
                named = zip(facts["names"][kind], each, strict=True)
                out |= {f"{name}_{domain}": round(share, 4) for domain, share in named}
    return out
