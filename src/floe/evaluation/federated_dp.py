"""What example-level privacy costs and what it stops: epsilons, losses, inserted secrets.

One device's examples hold short word tasks and secrets such as "the code of ward 7 is 493-201",
each of them once. Training with and without privacy sees the same examples for the same number of
steps; losses are on held-out examples of the tasks, and each secret is ranked among 1,000.

Torch comes in when the benchmark runs.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floe.core.config import home
from floe.core.files import atomic_write
from floe.core.sections import ModelConfig
from floe.federated.accountant import epsilon, noise_for
from floe.federated.sampling import Mechanism, Sampling

if TYPE_CHECKING:
    from floe.federated.on_torch.base_model import BaseModel
    from floe.federated.on_torch.canaries import Canary
    from floe.federated.rows import Row
    from floe.federated.update import AdapterState

Say = Callable[[str], None]
Figures = dict[str, Any]
DELTA = 1e-5
SEED = 7
_TASKS = ("singular_to_plural", "first_word_letter", "antonyms", "num_to_verbal")
_GRID_QUICK = ((0.8, 0.01, 300), (1.5, 0.05, 100))
_GRID_FULL = tuple(
    (noise, rate, steps)
    for noise in (0.6, 0.8, 1.0, 2.0, 4.0)
    for rate in (0.001, 0.01, 0.05, 0.2)
    for steps in (10, 100, 1000)
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One form of training; `layers` None = the whole model. A step sees `rate` of the examples."""

    layers: int | None
    tasks: int
    per_task: int
    canaries: int
    seeds: int
    rate: float
    steps: int
    targets: tuple[float, ...]
    rank: int = 16
    learning_rate: float = 1e-2
    clip_norm: float = 1.0
    held_out: int = 48


QUICK = Plan(
    layers=2, tasks=2, per_task=12, canaries=8, seeds=1, rate=0.25, steps=40, targets=(3.0, 8.0),
    learning_rate=2e-2,
)  # fmt: skip
LOSS_FULL = Plan(
    layers=None, tasks=4, per_task=64, canaries=0, seeds=1, rate=1 / 16, steps=48,
    targets=(1.0, 3.0, 8.0), learning_rate=2e-3,
)  # fmt: skip
CANARY_FULL = Plan(
    layers=6, tasks=2, per_task=16, canaries=64, seeds=3, rate=0.25, steps=60, targets=(8.0,)
)


def dp_figures(full: bool, say: Say) -> Figures:
    """Figures of issue 6 on privacy, flat.

    The long form goes on where a stopped one ended.

    Raises:
        Missing: dp-accounting, Opacus or torch is not installed. NotFound, PullFailed, BadModel:
        the base cannot be had.
    """
    if not full:
        quick = accountant_figures(_GRID_QUICK, say) | trained_figures(QUICK, say)
        return quick | {"canary_exposure": None}  # a few secrets have no median to hold to a goal
    path = home() / "bench" / "federated-dp.json"
    figures = _once(path, f"{_GRID_FULL}", lambda: accountant_figures(_GRID_FULL, say))
    losses = _once(path, f"{LOSS_FULL}", lambda: trained_figures(LOSS_FULL, say))
    secrets = _once(path, f"{CANARY_FULL}", lambda: trained_figures(CANARY_FULL, say))
    kept = {k: v for k, v in secrets.items() if k.startswith("canary_")}
    path.unlink(missing_ok=True)
    return figures | losses | kept


def _once(path: Path, key: str, measure: Callable[[], Figures]) -> Figures:
    """The figures under `key` in the file, measured and written there where they are not."""
    done: dict[str, Figures] = json.loads(path.read_bytes()) if path.is_file() else {}
    if key not in done:
        done[key] = measure()
        with atomic_write(path) as file:
            file.write(json.dumps(done).encode())
    return done[key]


def accountant_figures(grid: Sequence[tuple[float, float, int]], say: Say) -> Figures:
    """The largest relative difference from Opacus' PRV accountant over (noise, rate, steps).

    PRV is asked for a fifth of a percent. Epsilons below 0.05 are left out (its grid has no end
    there), and so are those above 50, which promise nothing.
    """
    from floe.federated.on_torch.prv import prv_epsilon

    worst, where, counted = 0.0, "", 0
    for noise, rate, steps in grid:
        sampling = Sampling(kind="poisson", rate=rate)
        mine = epsilon(
            Mechanism(noise_multiplier=noise, sampling=sampling, steps=steps), delta=DELTA
        )
        if not 0.05 <= mine <= 50:
            continue
        other = prv_epsilon(
            noise_multiplier=noise, rate=rate, steps=steps, delta=DELTA, eps_error=mine / 500
        )
        counted += 1
        if abs(mine - other) / other > worst:
            worst, where = abs(mine - other) / other, f"noise {noise}, rate {rate}, steps {steps}"
    say(f"epsilon: largest difference from PRV {worst:.2%} over {counted} points")
    return {"epsilon_abs_err": worst, "epsilon_worst_at": where, "epsilon_points": counted}


def trained_figures(plan: Plan, say: Say) -> Figures:
    """Losses and ranks of one plan: without privacy and at each target, over its seeds."""
    from floe.assemble.learning import open_base

    base = open_base(ModelConfig().name, home=home(), n_layers=plan.layers)
    return run_plan(base, plan, say)


def run_plan(base: BaseModel, plan: Plan, say: Say) -> Figures:
    """The same on a base at hand."""
    from floe.federated.on_torch.canaries import ranks
    from floe.federated.on_torch.train import answer_loss

    began_s = time.process_time()
    ways: tuple[float | None, ...] = (None, *plan.targets)
    losses: dict[float | None, list[float]] = {w: [] for w in ways}
    places: dict[float | None, list[float]] = {w: [] for w in ways}
    base_losses = []
    for seed in range(plan.seeds):
        rows, held_out, secrets = examples(base, plan, seed=SEED + seed)
        base_losses.append(answer_loss(base, None, held_out).loss)
        for way in ways:
            state = trained(base, rows, plan, target=way, seed=SEED + seed)
            losses[way].append(answer_loss(base, state, held_out).loss)
            places[way] += ranks(base, state, secrets)
            name = "without privacy" if way is None else f"epsilon {way:g}"
            say(f"seed {seed + 1}/{plan.seeds}, {name}: loss {losses[way][-1]:.3f}")
    out: Figures = {"loss_dp_base": statistics.mean(base_losses)}
    out |= {f"loss_dp_{_name(w)}": statistics.mean(losses[w]) for w in ways}
    out |= _terms(plan, len(rows))
    if plan.canaries:
        out |= _exposure(plan, places)
    return out | {"dp_cpu_s": round(time.process_time() - began_s, 1)}


def _name(way: float | None) -> str:
    return "none" if way is None else f"eps{way:g}"


def _terms(plan: Plan, n_examples: int) -> Figures:
    noises = {f"dp_noise_{_name(t)}": noise_of(plan, t) for t in plan.targets}
    return {
        **noises,
        "dp_delta": DELTA,
        "dp_rate": plan.rate,
        "dp_steps": plan.steps,
        "dp_examples": n_examples,
        "dp_clip_norm": plan.clip_norm,
        "dp_rank": plan.rank,
        "dp_layers": plan.layers,
    }


def _exposure(plan: Plan, places: dict[float | None, list[float]]) -> Figures:
    """Median places in percent; at chance each is uniform, so the median's error is known."""
    n = len(places[None])
    strictest = max(plan.targets)
    return {
        "canary_exposure": 100 * statistics.median(places[strictest]),
        "canary_exposure_of": f"median rank in %, epsilon {strictest:g}",
        "canary_exposure_none": 100 * statistics.median(places[None]),
        "canary_first_of_1000_none": sum(p == 0.0 for p in places[None]) / n,
        **{f"canary_exposure_{_name(t)}": 100 * statistics.median(places[t]) for t in plan.targets},
        "canary_count": n,
        "canary_error_at_chance": 50 / n**0.5,
        "canary_layers": plan.layers,
        "canary_steps": plan.steps,
        "canary_rate": plan.rate,
    }


def noise_of(plan: Plan, target: float) -> float:
    """The noise that keeps the whole training within `target`."""
    sampling = Sampling(kind="poisson", rate=plan.rate)
    return noise_for(target, sampling=sampling, steps=plan.steps, delta=DELTA)


def trained(
    base: BaseModel, rows: Sequence[Row], plan: Plan, *, target: float | None, seed: int
) -> AdapterState:
    """An adapter trained on all rows; `target` None = without privacy."""
    from floe.federated.on_torch.dp_sgd import DpSgd
    from floe.federated.on_torch.steps import MeanGradient
    from floe.federated.on_torch.train import LoraTrainer
    from floe.federated.settings import TrainSettings

    settings = TrainSettings(
        mode="freeze-a", steps=plan.steps, learning_rate=plan.learning_rate, max_tokens=128,
        targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    )  # fmt: skip
    if target is None:
        rule: Any = MeanGradient(batch=max(1, round(plan.rate * len(rows))), clip_norm=None)
    else:
        rule = DpSgd(
            sampling=Sampling(kind="poisson", rate=plan.rate),
            clip_norm=plan.clip_norm,
            noise_multiplier=noise_of(plan, target),
            micro_batch=32,
            secret=False,  # a benchmark repeats
        )
    trainer = LoraTrainer(base=base, train=rows, validation=(), settings=settings, rule=rule)
    return trainer.fit(None, rank=plan.rank, seed=seed).state


def examples(
    base: BaseModel, plan: Plan, *, seed: int
) -> tuple[list[Row], list[Row], tuple[Canary, ...]]:
    """Training rows with the secrets among them, held-out rows of the tasks, the secrets."""
    from floe.evaluation.federated_tasks import tasks

    rng, rows, held_out = random.Random(seed), [], []
    for name in _TASKS[: plan.tasks]:
        task = tasks()[name]
        for example in rng.sample(task.train, min(plan.per_task, len(task.train))):
            rows.append(_row(base, example.turns[-1].content, example.answer))
        part = plan.held_out // plan.tasks
        for example in rng.sample(task.held_out, min(part, len(task.held_out))):
            held_out.append(_row(base, example.turns[-1].content, example.answer))
    secrets = tuple(canary(rng, n) for n in range(plan.canaries))
    rows += [c.row(base) for c in secrets]
    rng.shuffle(rows)
    return rows, held_out, secrets


def canary(rng: random.Random, number: int) -> Canary:
    """A secret drawn evenly: nothing but the examples tells it."""
    from floe.federated.on_torch.canaries import Canary

    ward, begin, digits = number + 1, rng.randrange(100, 1000), rng.randrange(1000)
    return Canary(prefix=f"the code of ward {ward} is {begin}-", digits=f"{digits:03d}")


def _row(base: BaseModel, prompt: str, answer: str) -> Row:
    """A short row without the chat template, which would be most of its tokens."""
    return base.row(f"{prompt} =", f" {answer}{base.tokenizer.eos_token}")
