"""Part of `floe bench tailoring`: adapters carried over against adapters trained anew.

Adapters are trained on the original for tasks of Instruction Induction, carried to the tailored
model by its index map, and compared there on held-out examples with adapters that were trained on
it with the same steps, and with themselves after a few steps of repair.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import mean

from floe.assemble.originals import state_of
from floe.core.errors import NotFound
from floe.evaluation.federated_tasks import tasks
from floe.evaluation.tailoring_setup import Figures, Say, Setup, open_setup
from floe.federated.on_torch.base_model import BaseModel, load_base
from floe.federated.on_torch.train import LoraTrainer, answer_loss
from floe.federated.rows import Row, rows_of
from floe.federated.settings import TrainSettings
from floe.federated.update import AdapterState
from floe.tailoring.carry import HF_NAMES, carry
from floe.tailoring.on_torch.reload import load_folder
from floe.tailoring.plan import Cut, ModelShape
from floe.tailoring.plan_file import read_cut

Losses = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CarryPlan:
    """How adapters are trained; `repair_steps` at `repair_rate` after carrying."""

    names: tuple[str, ...] = ("antonyms", "translation_en-de", "num_to_verbal")
    rank: int = 8
    steps: int = 40
    batch: int = 8
    learning_rate: float = 2e-3
    repair_steps: int = 10
    repair_rate: float = 5e-4
    train: int = 160
    held_out: int = 48


FULL = CarryPlan()
QUICK = CarryPlan(names=("antonyms",), steps=6, repair_steps=2, train=24, held_out=12)


def carry_figures(full: bool, say: Say) -> Figures:
    """`adapter_carry`: how much of the gain of an adapter trained anew a carried one lacks."""
    setup, plan = open_setup(full), FULL if full else QUICK
    folder = setup.results / "builds" / "tailored" / "hf"
    if not folder.is_dir():
        raise NotFound(f"{folder} is not there: run the benchmark's part 'builds' first")
    base = load_base(setup.original.folder, digest=setup.original.shape.base_digest)
    small = dataclasses.replace(base, model=load_folder(folder))
    cut = read_cut(folder / "floe_cut.json")
    found = []
    for name in plan.names:
        found.append(one_task(name, plan, base, small, cut, setup))
        say(f"{name}: " + ", ".join(f"{k} {v:.3f}" for k, v in found[-1].items()))
    return summed(found, plan)


def summed(found: list[Losses], plan: CarryPlan) -> Figures:
    """Means over tasks; the gaps are of the mean losses. None where training gained nothing."""
    means = {key: mean(losses[key] for losses in found) for key in found[0]}
    gain = means["plain"] - means["retrained"]

    def gap(key: str) -> float | None:
        return (means[key] - means["retrained"]) / gain if gain > 0 else None

    return {
        "adapter_carry": gap("carried"),
        "adapter_carry_repaired": gap("repaired"),
        **{f"adapter_loss_{key}": value for key, value in means.items()},
        "adapter_tasks": ",".join(plan.names),
        "adapter_steps": plan.steps,
        "adapter_repair_steps": plan.repair_steps,
    }


def one_task(
    name: str, plan: CarryPlan, base: BaseModel, small: BaseModel, cut: Cut, setup: Setup
) -> Losses:
    """Held-out losses in nats per answer token, on the tailored model but for `original`."""
    task, shape = tasks()[name], setup.original.shape
    train, _ = rows_of(task.train[: plan.train], base.encode, max_tokens=128)
    held_out, _ = rows_of(task.held_out[: plan.held_out], base.encode, max_tokens=128)
    trained = _fit(base, train, plan, start=None)
    carried = carried_state(trained, cut, shape)
    repaired = _fit(small, train, plan, start=carried)
    retrained = _fit(small, train, plan, start=None)
    return {
        "original": answer_loss(base, trained, held_out).loss,
        "plain": answer_loss(small, None, held_out).loss,
        "carried": answer_loss(small, carried, held_out).loss,
        "repaired": answer_loss(small, repaired, held_out).loss,
        "retrained": answer_loss(small, retrained, held_out).loss,
    }


def carried_state(state: AdapterState, cut: Cut, shape: ModelShape) -> AdapterState:
    """The adapter for the tailored model."""
    modules = {name: (f.a_RI, f.b_OR) for name, f in state.modules.items()}
    return state_of(carry(modules, cut, shape, names=HF_NAMES), base_digest=state.base_digest)


def _fit(
    base: BaseModel, rows: tuple[Row, ...], plan: CarryPlan, *, start: AdapterState | None
) -> AdapterState:
    settings = TrainSettings(
        steps=plan.repair_steps if start else plan.steps, batch=plan.batch,
        learning_rate=plan.repair_rate if start else plan.learning_rate, max_tokens=128,
    )  # fmt: skip
    trainer = LoraTrainer(base=base, train=rows, validation=(), settings=settings)
    return trainer.fit(start, rank=plan.rank, seed=3).state
