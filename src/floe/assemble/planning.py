"""A plan for a device, searched for in one call."""

from __future__ import annotations

from dataclasses import dataclass

from floe.assemble.building import Workshop
from floe.assemble.originals import Original, types_of_file
from floe.core.errors import BadPlan
from floe.deploy import Told
from floe.tailoring.base import Budgets, refuse_unlimited
from floe.tailoring.genes import Choices
from floe.tailoring.memory import Room
from floe.tailoring.plan_file import PlanFile
from floe.tailoring.profile import DeviceProfile
from floe.tailoring.run import run_search
from floe.tailoring.search.make import make_search
from floe.tailoring.search.seeds import heuristic_seeds
from floe.tailoring.shapes import whole_plan
from floe.tailoring.space import Space


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a model is searched for: a share of the original's decode time in F16, a memory."""

    latency_ratio: float | None = None
    memory_bytes: int | None = None
    context_tokens: int = 2048
    adapters: int = 0
    evaluations: int = 24
    seed: int = 0


def search_plan(workshop: Workshop, device: DeviceProfile, asked: Asked, told: Told) -> PlanFile:
    """The best plan of an evolutionary search inside the limits, the profile's among them.

    Raises:
        BadPlan: no plan keeps the limits, there are none, or the profile is of another model.
    """
    if device.shape != workshop.original.shape:
        raise BadPlan(
            f"the device profile is of another model than {workshop.original.name}; profile this "
            "one with: floe tailor profile"
        )
    room = Room(context_tokens=asked.context_tokens, adapters=asked.adapters)
    costs = device.costs(room=room)
    decode_ms = device.limits.latency_slo_ms
    if asked.latency_ratio is not None:
        decode_ms = costs.cost(whole_plan(device.shape)).decode_ms * asked.latency_ratio
    budget_mb = device.limits.memory_budget_mb
    memory = round(budget_mb * 1e6) if budget_mb is not None else None
    budgets = Budgets(decode_ms=decode_ms, memory_bytes=asked.memory_bytes or memory)
    refuse_unlimited(budgets)
    space = Space(
        shape=device.shape, cost=costs, budgets=budgets, room=room,
        choices=Choices(importances=("flap",), fixed_quants=types_in(device, workshop.original)),
    )  # fmt: skip
    told("measuring which heads and channels matter", 0.0)
    quality = workshop.opened.quality
    found = run_search(
        make_search(
            "evolutionary", space=space, seed=asked.seed,
            seeds=heuristic_seeds(space, quality.importances),
        ),
        space=space, quality=quality, n_evaluations=asked.evaluations,
        on_step=lambda s: told(f"searching, best {s.best.perplexity:.1f}", s.done / s.total),
    )  # fmt: skip
    return PlanFile(plan=found.best.plan, budgets=budgets)


def types_in(device: DeviceProfile, original: Original) -> dict[str, str]:
    """The original file's types, as far as the profile timed them."""
    known = device.table.grid.quants
    found = types_of_file(original.gguf)
    return {group: quant for group, quant in found.items() if quant in known}
