"""A policy in a world, request by request: what it loses and what it waits for.

Legend: T requests, N adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.adapters.epochs import EpochSettings
from floe.adapters.resident_set import Problem, choose_set
from floe.core.sections import RoutingConfig
from floe.evaluation.routing_policies import (
    BASE,
    EdgeLora,
    EpsilonGreedy,
    Gate,
    LinUcb,
    Memory,
    Polar,
    Policy,
    StaticMemory,
)
from floe.evaluation.routing_worlds import World

FloatArray = NDArray[np.float64]
EPSILON = 0.05
_SAMPLE = 2_000


@dataclass(frozen=True, kw_only=True)
class Run:
    """Per request (T,): net utility over the base's (loads, also ahead, subtracted), and loads."""

    net: FloatArray
    worth: FloatArray
    loads: NDArray[np.int64]


def run(world: World, policy: Policy, costs: FloatArray, *, seed: int) -> Run:
    """Every request in order. Each load is charged in full, loads ahead of use as well."""
    rng = np.random.default_rng(seed)
    noise_T = world.noise * rng.standard_normal(world.requests)
    cos_TN = (world.embeddings @ world.centroids.T).astype(np.float64)
    net, worth = np.zeros(world.requests), np.zeros(world.requests)
    loads = np.zeros(world.requests, dtype=np.int64)
    for t in range(world.requests):
        embedding, cos_N = world.embeddings[t], cos_TN[t]
        chosen = policy.choose(embedding, cos_N)
        if chosen != BASE:
            worth[t] = net[t] = world.worth[t, chosen]
            if policy.memory.use(chosen):
                net[t] -= costs[chosen]
                loads[t] += 1
        utility = float(min(world.shared[t] + worth[t] + noise_T[t], 0.0))
        for ahead in policy.learn(embedding, cos_N, chosen, utility):
            net[t] -= costs[ahead]
            loads[t] += 1
    return Run(net=net, worth=worth, loads=loads)


def policies(
    world: World, config: RoutingConfig, costs: FloatArray, epochs: EpochSettings, *, seed: int
) -> dict[str, Callable[[], Policy]]:
    """The cache-aware bandit with epochs, and what it is compared with."""

    def memory() -> Memory:
        return Memory(world.n_bytes, world.budget_bytes)

    return {
        "ours": lambda: Polar(
            memory(), config, world=world, costs=costs, epochs=epochs,
        ),
        "static_gate": lambda: Gate(
            StaticMemory(world.n_bytes, world.budget_bytes, gate_set(world, config, costs)), config
        ),
        "lru_gate": lambda: Gate(memory(), config),
        "edgelora": lambda: EdgeLora(memory(), config),
        "blind_linucb": lambda: LinUcb(memory(), config, world=world),
        "epsilon_greedy": lambda: EpsilonGreedy(
            memory(), config, world=world, costs=costs, epsilon=EPSILON, seed=seed
        ),
    }  # fmt: skip


def gate_set(world: World, config: RoutingConfig, costs: FloatArray) -> list[int]:
    """The best fixed set for the gate's choices, in hindsight: most cost saved per byte first."""
    cos_TN = world.embeddings @ world.centroids.T
    best = cos_TN.argmax(axis=1)
    best = best[cos_TN.max(axis=1) >= config.threshold]
    saved = np.bincount(best, minlength=len(world.n_bytes)) * costs / np.array(world.n_bytes)
    held, free = [], world.budget_bytes
    for k in np.argsort(-saved, kind="stable"):
        if world.n_bytes[k] <= free and saved[k] > 0:
            held.append(int(k))
            free -= world.n_bytes[k]
    return held


def best_fixed(world: World, costs: FloatArray) -> FloatArray:
    """Net utility (T,) of the best fixed set with the best choice for every prompt, in hindsight.

    The set is found with the true utilities of evenly spaced prompts (`choose_set`).
    """
    step = max(1, world.requests // _SAMPLE)
    found = choose_set(
        Problem(
            utilities=world.worth[::step], costs=costs, n_bytes=world.n_bytes,
            budget_bytes=world.budget_bytes,
        )
    )  # fmt: skip
    outside = np.ones(len(costs), dtype=bool)
    outside[list(found.members)] = False
    best_T: FloatArray = (world.worth - costs * outside).max(axis=1)
    return np.maximum(best_T, 0.0)


def free_best(world: World) -> FloatArray:
    """Utility (T,) of the best choice for every prompt if memory had no end."""
    best_T: FloatArray = world.worth.max(axis=1)
    return np.maximum(best_T, 0.0)
