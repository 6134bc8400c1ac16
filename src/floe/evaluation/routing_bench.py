"""`floe bench routing`: how often the router is right, and what learning with costs saves.

Two worlds (`routing_worlds`): generated contexts with 64 adapters, and a replay of the measured
losses of the shipped adapters on real held-out prompts. In each the cache-aware bandit with epochs
meets the same router without parts of it, with the same prompts, noise and prior.

Totals are per request, in nats a token: `loss` is what is lost against the best adapter for each
prompt, `paging` what was waited for loads (`miss_cost_per_s` a second; loads ahead of use count in
full), `total` both; `whole` has the unavoidable loss in it too. `regret` is against the best fixed
set with the best choice for each prompt.
Settings were tuned on other seeds and, for the replay, other prompts than are reported here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.adapters.epochs import EpochSettings
from floe.adapters.source import shipped
from floe.assemble import EMBEDDING
from floe.core.config import home
from floe.core.sections import RoutingConfig
from floe.evaluation import routing_sim
from floe.evaluation.machine import versions
from floe.evaluation.routing_accuracy import accuracy_figures
from floe.evaluation.routing_worlds import World, card, generated, replay
from floe.models.pull import ensure
from floe.routing.embed import StaticEmbedding, shipped_background
from floe.routing.learner import Learner

Say = Callable[[str], None]
Figures = dict[str, Any]
REQUESTS = 20_000
SEEDS_QUICK, SEEDS_FULL = (1,), (1, 2, 3, 4, 5)
PARTS = (8, 4, 2, 1)
RIVALS = ("static_gate", "lru_gate", "edgelora", "blind_linucb", "epsilon_greedy")
PRICES = (0.1, 0.3, 3.0)
FloatArray = NDArray[np.float64]


def routing_benchmark(full: bool, say: Say) -> Figures:
    """Issue 5's figures of the router; a field that was not measured is None."""
    config, seeds = (
        RoutingConfig(agreement=True, miss_cost_per_s=1.0),
        SEEDS_FULL if full else SEEDS_QUICK,
    )
    pulled = ensure(EMBEDDING, home=home())
    embedding = StaticEmbedding(
        weights=pulled.files["weights"], tokenizer=pulled.files["tokenizer"],
        digest=pulled.digest, background=shipped_background(pulled.digest),
    )  # fmt: skip
    figures = accuracy_figures(embedding.digest) | decision_figures()
    say("accuracy and decision times")
    places = shipped_centroids()
    worlds: dict[str, Callable[[int], World]] = {
        "generated": lambda seed: generated(requests=REQUESTS, seed=seed),
        "replay": lambda seed: replay(
            requests=REQUESTS, seed=seed, centroids=places, part="report"
        ),
    }
    for name, make in worlds.items():
        runs = [world_figures(make(seed), config, seed=seed) for seed in seeds]
        figures |= {f"{key}_{name}": value for key, value in averaged(runs).items()}
        figures |= ratios(figures, name)
        say(f"{name}: {REQUESTS} requests, {len(seeds)} seed(s)")
    if full:
        figures |= price_figures(worlds["generated"](SEEDS_FULL[0]), say)
    for rival in RIVALS:
        pair = [figures[f"regret_ratio_{rival}_{name}"] for name in worlds]
        figures[f"regret_ratio_{rival}"] = max(pair)
    facts = card()
    return {
        **figures,
        "requests": REQUESTS,
        "seeds": len(seeds),
        "miss_cost_per_s": config.miss_cost_per_s,
        "exploration": config.exploration,
        "context_width": config.context_width,
        "replay_prompts": facts["counts"]["report"],
        "replay_losses_commit": facts["commit"],
        "load_times": "measured work on this line of processors and a modelled SD card, 40 MB/s",
        **versions(llama_build=None),
    }


def shipped_centroids() -> NDArray[np.float32]:
    """Unit centroids of the shipped adapters, in the order of the stored losses."""
    folders = {folder.name: folder for folder in shipped()}
    rows = [
        json.loads((folders[a["name"]] / "centroid.json").read_text("utf-8"))["vector"]
        for a in card()["adapters"]
    ]
    table = np.array(rows, dtype=np.float32)
    return np.asarray(table / np.linalg.norm(table, axis=1, keepdims=True))


def world_figures(world: World, config: RoutingConfig, *, seed: int) -> dict[str, float]:
    """Loss, paging, total, loads and regret of every way to choose, per request or as sums."""
    costs = config.miss_cost_per_s * world.load_ms / 1000
    free, fixed = routing_sim.free_best(world), routing_sim.best_fixed(world, costs)
    out: dict[str, float] = {
        "whole_base": float(-world.shared.mean()),
        "whole_free_best": float(-(world.shared + free).mean()),
        "total_best_fixed": float((free - fixed).mean()),
        "mean_miss_cost": float(costs.mean()),
    }
    made = routing_sim.policies(world, config, costs, EpochSettings(), seed=seed)
    for name, make in made.items():
        run = routing_sim.run(world, make(), costs, seed=seed)
        out[f"loss_{name}"] = float((free - run.worth).mean())
        out[f"paging_{name}"] = float((run.worth - run.net).mean())
        out[f"total_{name}"] = float((free - run.net).mean())
        out[f"whole_{name}"] = float(-(world.shared + run.net).mean())
        out[f"loads_{name}"] = float(run.loads.sum())
        grown = np.cumsum(fixed - run.net)
        for part in PARTS:
            out[f"regret_{name}_t{part}"] = float(grown[world.requests // part - 1])
    return out


def averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over seeds."""
    return {key: round(float(np.mean([r[key] for r in runs])), 5) for key in runs[0]}


def ratios(figures: Figures, world: str) -> Figures:
    """Ours over each rival: lost and waited (`regret_ratio`), and with the base's own loss.

    `whole_ratio` is the worst of the latter: what is left of it even the best choice cannot avoid.
    `regret_growth` is the exponent of growth from T/8 to T: 1 is linear.
    """
    out: Figures = {}
    for rival in RIVALS:
        ratio = figures[f"total_ours_{world}"] / figures[f"total_{rival}_{world}"]
        out[f"regret_ratio_{rival}_{world}"] = round(ratio, 4)
    whole = [figures[f"whole_ours_{world}"] / figures[f"whole_{r}_{world}"] for r in RIVALS]
    out[f"whole_ratio_{world}"] = round(max(whole), 4)
    first, last = (figures[f"regret_ours_t{part}_{world}"] for part in (PARTS[0], PARTS[-1]))
    grown = float(np.log(last / first) / np.log(PARTS[0])) if first > 0 and last > 0 else None
    out[f"regret_growth_{world}"] = round(grown, 4) if grown is not None else None
    return out


def price_figures(world: World, say: Say) -> Figures:
    """The same comparison where a second's wait is worth less or more."""
    out: Figures = {}
    for price in PRICES:
        config = RoutingConfig(agreement=True, miss_cost_per_s=price)
        found = world_figures(world, config, seed=SEEDS_FULL[0])
        tag = f"price_{price:g}".replace(".", "_")
        for rival in RIVALS:
            ratio = found["total_ours"] / found[f"total_{rival}"]
            out[f"regret_ratio_{rival}_{tag}"] = round(ratio, 4)
        say(f"{price:g} nats a second")
    return out


def decision_figures(*, adapters: int = 1_000, width: int = 64, rounds: int = 300) -> Figures:
    """Microseconds to score 1,000 observed adapters in 64 numbers, cosines included; to learn."""
    rng = np.random.default_rng(0)
    config = RoutingConfig(context_width=width)
    learner = Learner(config=config, encoder_digest="timed", embedding_width=256)
    centroids = rng.standard_normal((adapters, 256)).astype(np.float32)
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    digests = tuple(map(str, range(adapters)))
    costs = np.where(rng.random(adapters) < 0.1, 0.0, rng.uniform(0.1, 0.5, adapters))
    for n in range(2 * adapters):
        x_D = np.append(rng.standard_normal(width) / np.sqrt(width), 1.0)
        learner.bandit.update(digests[n % adapters], x_D, float(rng.standard_normal()))
    decided, learned = [], []
    for _ in range(rounds):
        k = int(rng.integers(adapters))
        prompt = centroids[k] + 0.08 * rng.standard_normal(256).astype(np.float32)
        prompt /= np.linalg.norm(prompt)
        begin = time.perf_counter()
        cos = (centroids @ prompt).astype(np.float64)
        learner.moved(digests, prompt, cos, costs, threshold=config.threshold)
        middle = time.perf_counter()
        learner.bandit.update(digests[k], np.append(x_D[:-1], 1.0), 0.1)
        decided.append(middle - begin)
        learned.append(time.perf_counter() - middle)
    return {
        "decision_us_p50": round(1e6 * float(np.median(decided)), 1),
        "learn_us_p50": round(1e6 * float(np.median(learned)), 1),
    }
