"""Worlds to route in: prompts, adapters, what each is really worth, what loads cost.

Generated ones draw adapters around topics, several for each, some better than others, so that the
gate (cosines to centroids) knows much and not all. The replay takes the measured losses of the
shipped adapters on real held-out prompts (`scripts/adapter_losses.py`).

Legend: T requests, N adapters, W width of the embedding, M topics, P prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
DISK_BYTES_S = 40e6
"""An SD card's reading speed (its class promises 10 to 90 MB/s): modelled, not measured here."""


@dataclass(frozen=True, kw_only=True)
class World:
    """`worth` (T, N): true utility over the base's, nats a token; `shared` (T,): the base's own.

    `load_ms` (N,) and `n_bytes` (N,) of each adapter, `budget_bytes` of memory for them.
    """

    name: str
    encoder_digest: str
    embeddings: NDArray[np.float32]
    centroids: NDArray[np.float32]
    worth: FloatArray
    shared: FloatArray
    noise: float
    load_ms: FloatArray
    n_bytes: tuple[int, ...]
    budget_bytes: int

    @property
    def requests(self) -> int:
        """T."""
        return len(self.worth)


def data_file(name: str) -> Any:
    """A file of this benchmark's data."""
    return files("floe.evaluation").joinpath("routing_data").joinpath(name)


def card() -> dict[str, Any]:
    """What is known of the stored losses and load times."""
    found: dict[str, Any] = json.loads(data_file("adapter_losses.json").read_text("utf-8"))
    return found


def load_times(loads: list[dict[str, float]], n_bytes: FloatArray) -> FloatArray:
    """Milliseconds of a load by size: the measured work (a line through the warm loads) and the
    modelled reading from an SD card."""
    sizes = np.array([row["bytes"] for row in loads], dtype=np.float64)
    warm = np.array([row["warm_ms"] for row in loads])
    slope, start = np.polyfit(sizes, warm, 1)
    work_ms: FloatArray = np.maximum(start + slope * n_bytes, 0.1)
    return work_ms + 1000 * n_bytes / DISK_BYTES_S


def generated(
    *, requests: int, seed: int, adapters: int = 64, topics: int = 24, width: int = 32,
    resident_share: float = 0.125,
) -> World:  # fmt: skip
    """Topics with Zipf popularity; 64 adapters of rank 4 to 64, an eighth of their bytes fits."""
    rng = np.random.default_rng(seed)
    topic_MW = _unit(rng.standard_normal((topics, width)))
    of_topic = np.concatenate([np.arange(topics), rng.integers(0, topics, adapters - topics)])
    spread = rng.standard_normal((adapters, width)) / np.sqrt(width)
    centroids = _unit(topic_MW[of_topic] + 0.35 * spread)
    popular = 1.0 / (1 + rng.permutation(topics))
    topic_T = rng.choice(topics, size=requests, p=popular / popular.sum())
    around = topic_MW[topic_T] + 1.1 * rng.standard_normal((requests, width)) / np.sqrt(width)
    general = rng.random(requests) < 0.1
    around[general] = rng.standard_normal((int(general.sum()), width))
    embeddings = _unit(around)
    aims = _unit(centroids + 0.5 * rng.standard_normal((adapters, width)) / np.sqrt(width))
    quality = 0.2 * rng.standard_normal(adapters)
    gain = rng.uniform(1.2, 2.4, adapters)
    worth = gain * (embeddings @ aims.T - 0.25) + quality
    ranks = rng.choice([4, 8, 16, 32, 64], size=adapters)
    n_bytes = ranks * 610_000  # F16, all seven projections of 30 layers (SmolLM2-135M)
    return World(
        name="generated",
        encoder_digest="generated",
        embeddings=embeddings.astype(np.float32),
        centroids=centroids.astype(np.float32),
        worth=worth,
        shared=-2.0 + 0.8 * (embeddings @ _unit(rng.standard_normal((1, width)))[0]),
        noise=0.3,
        load_ms=load_times(card()["loads"], n_bytes.astype(np.float64)),
        n_bytes=tuple(int(b) for b in n_bytes),
        budget_bytes=int(resident_share * n_bytes.sum()),
    )


def replay(*, requests: int, seed: int, centroids: NDArray[np.float32], part: str) -> World:
    """Real adapters, real prompts, real losses; which prompts come is drawn by Zipf over kinds.

    `centroids` (N, W) in the order of the card's adapters. `part`: "report" or "tune", different
    prompts. The popularity of the kinds changes every quarter. Two of five adapters fit. Loads
    take what adapters of rank 64 would take, as in `load_times`.
    """
    rng = np.random.default_rng(seed)
    with np.load(data_file("adapter_losses.npz"), allow_pickle=False) as stored:
        wanted = stored["is_report_P"] == (part == "report")
        loss_PA = stored["loss_PA"][wanted].astype(np.float64)
        vector_PW = _unit(stored["vector_PD"][wanted].astype(np.float64))
        kind_P = stored["kind_P"][wanted]
    facts = card()
    kinds = len(facts["kinds"])
    prompt_T = np.zeros(requests, dtype=np.intp)
    for quarter in np.array_split(np.arange(requests), 4):
        popular = 1.0 / (1 + rng.permutation(kinds))
        chosen = rng.choice(kinds, size=len(quarter), p=popular / popular.sum())
        for kind in range(kinds):
            at = quarter[chosen == kind]
            prompt_T[at] = rng.choice(np.flatnonzero(kind_P == kind), size=len(at))
    adapters = loss_PA.shape[1] - 1
    n_bytes = np.full(adapters, 64 * 610_000)
    return World(
        name="replay",
        encoder_digest=facts["encoder_digest"],
        embeddings=vector_PW[prompt_T].astype(np.float32),
        centroids=centroids,
        worth=(loss_PA[:, :1] - loss_PA[:, 1:])[prompt_T],
        shared=-loss_PA[prompt_T, 0],
        noise=0.0,
        load_ms=load_times(facts["loads"], n_bytes.astype(np.float64)),
        n_bytes=tuple(int(b) for b in n_bytes),
        budget_bytes=2 * 64 * 610_000,
    )


def _unit(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
