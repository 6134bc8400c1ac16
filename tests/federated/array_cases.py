"""Adapters, updates and slow obvious twins for the tests of the array side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floe.federated.update import AdapterState, Factors, Update

SHAPES = {"q": (6, 10), "k": (10, 6), "v": (8, 4)}  # none of them square: bug-log C23


def factors(rng: np.random.Generator, shape: tuple[int, int], rank: int) -> Factors:
    n_outputs, n_inputs = shape
    return Factors(
        a_RI=rng.standard_normal((rank, n_inputs)).astype(np.float32),
        b_OR=rng.standard_normal((n_outputs, rank)).astype(np.float32),
    )


def state(
    rng: np.random.Generator, rank: int, shapes: dict[str, tuple[int, int]] | None = None
) -> AdapterState:
    return AdapterState(
        base_digest="base",
        modules={n: factors(rng, s, rank) for n, s in (shapes or SHAPES).items()},
    )


def update(adapter: AdapterState, client: str = "a", n_examples: int = 5) -> Update:
    return Update(client=client, round_number=1, state=adapter, n_examples=n_examples)


def product(one: Factors) -> np.ndarray:
    return one.b_OR.astype(np.float64) @ one.a_RI.astype(np.float64)


def dense_mean(states: Sequence[AdapterState], weights: Sequence[float]) -> dict[str, np.ndarray]:
    whole = sum(weights)
    return {
        name: sum(
            w / whole * product(s.modules[name]) for s, w in zip(states, weights, strict=True)
        )
        for name in states[0].modules
    }


def best_cut(matrix: np.ndarray, rank: int) -> np.ndarray:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def flat(products: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([products[n].ravel() for n in sorted(products)])


def flat_state(adapter: AdapterState) -> np.ndarray:
    return flat({n: product(f) for n, f in adapter.modules.items()})


def gap(adapter: AdapterState, wanted: dict[str, np.ndarray]) -> float:
    target = flat(wanted)
    return float(np.linalg.norm(flat_state(adapter) - target) / np.linalg.norm(target))
