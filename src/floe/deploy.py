"""A device's life: from any Llama-like model and a device's limits to one that is made for it.

`deploy` reads top to bottom; every step is a callable, chosen in `assemble/building.py`. The
folder is there whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from floe.core.errors import BadConfig, BadModel, BadPlan
from floe.core.files import sha256_file
from floe.tailoring.base import Budgets, Cost
from floe.tailoring.board import Board
from floe.tailoring.child_load import Loaded
from floe.tailoring.cut import check_built
from floe.tailoring.logit_check import LogitCheck
from floe.tailoring.manifest import FILE_NAME, Manifest, write_manifest
from floe.tailoring.memory import broken_budgets
from floe.tailoring.plan import Cut, Plan
from floe.tailoring.plan_file import PlanFile, write_plan
from floe.tailoring.tune import Settings
from floe.tailoring.whole_folder import whole_folder

Model: TypeAlias = Any
Told = Callable[[str, float], None]
"""What is being done, and how much of that step is done, 0 to 1."""

MODEL_FILE, HF_FOLDER, PLAN_FILE, ADAPTERS_FOLDER = "model.gguf", "hf", "plan.json", "adapters"
TRIALS_FILE = "plan.trials.jsonl"
CUT_FILE = f"{HF_FOLDER}/floe_cut.json"


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """The smaller model in memory, and what it was cut by."""

    model: Model
    cut: Cut


@dataclass(frozen=True, kw_only=True)
class Carried:
    """An adapter that was carried over into a folder of its name.

    `max_error` is the largest difference, in natural-log probabilities, between the smaller model
    with the carried adapter and the original with the adapter, masked. `modules` of
    `modules_before` stay. `repair_losses` are those of the few steps it was trained again, if any.
    """

    name: str
    modules: int
    modules_before: int
    max_error: float
    repair_losses: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What building takes. Models are opaque here.

    `find_plan` profiles and searches where no plan is given. `recover` None = no training.
    `perplexity` is on text that nothing is trained on; its model None = the original. `carry`
    writes what `find_adapters` gave as PEFT folders below the given one.
    """

    find_plan: Callable[[Told], PlanFile]
    prune: Callable[[Plan], Pruned]
    recover: Callable[[Model, Told], Model] | None
    perplexity: Callable[[Model | None, Mapping[str, str]], float]
    export_hf: Callable[[Model, Path, Cut], None]
    export_gguf: Callable[[Path, Path, str], None]
    check_logits: Callable[[Model, Path], LogitCheck]
    quantize: Callable[[Model, Path, Path, Mapping[str, str], Told], None]
    try_file: Callable[[Path], Loaded]
    find_adapters: Callable[[Sequence[str]], Sequence[Any]]
    carry: Callable[[Sequence[Any], Pruned, Model, Path, Told], tuple[Carried, ...]]
    tune: Callable[[Path, Told], Settings]
    measure: Callable[[Path, Settings], Cost]
    board: Callable[[], Board]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for. `name` is what the tailored model is called.

    `quants` are types for groups that the plan gives none. `trials` of the plan's search are laid
    beside it if there are any. A model whose perplexity is more than
    `max_ratio` times the original's is refused, unless `force` (bug-log D05).
    """

    name: str
    base_digest: str
    base_names: tuple[str, ...]
    plan: PlanFile | None = None
    quants: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    max_ratio: float = 2.0
    force: bool = False
    keep_hf: bool = True
    trials: Path | None = None
    facts: Mapping[str, float | int | str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises BadConfig for a bound below 1."""
        if not self.max_ratio >= 1.0:
            raise BadConfig("the perplexity may be at least 1 times the original's", param="max")


@dataclass(frozen=True, kw_only=True)
class Built:
    """What was built, into `folder`."""

    folder: Path
    manifest: Manifest
    logits: LogitCheck
    loaded: Loaded
    carried: tuple[Carried, ...]
    perplexities: Mapping[str, float]


def deploy(order: Order, target: Path, parts: Parts, *, told: Told = lambda *_: None) -> Built:
    """Build the model into the new folder `target`.

    Raises:
        BadPlan: the plan is not this base's, what was built is not what it asks for, or a budget
            does not hold. BadModel: a form of the model computes something else than the others.
        BadAdapter: an adapter cannot be carried over. Nothing is left behind in any case.
    """
    with whole_folder(target) as work:
        file = order.plan or parts.find_plan(told)
        plan = replace(file.plan, quants={**order.quants, **file.plan.quants})

        adapters = parts.find_adapters(order.adapters)

        told("pruning", 0.0)
        pruned = parts.prune(plan)
        check_built(pruned.cut, plan)
        told("judging", 0.0)
        found = {
            "original": parts.perplexity(None, {}),
            "pruned": parts.perplexity(pruned.model, {}),
        }
        model = pruned.model if parts.recover is None else parts.recover(pruned.model, told)
        if parts.recover is not None:
            found["recovered"] = parts.perplexity(model, {})
        found["built"] = parts.perplexity(model, plan.quants)
        _refuse_bad(found, order)

        told("writing and loading again", 0.0)
        hf, whole = work / HF_FOLDER, work / "whole.gguf"
        parts.export_hf(model, hf, pruned.cut)
        parts.export_gguf(hf, whole, order.name)
        told("comparing both forms", 0.0)
        logits = parts.check_logits(model, whole)
        _refuse_different(logits)
        parts.quantize(model, whole, work / MODEL_FILE, plan.quants, told)
        whole.unlink()
        told("loading in a process of its own", 0.0)
        loaded = parts.try_file(work / MODEL_FILE)

        carried = parts.carry(adapters, pruned, model, work / ADAPTERS_FOLDER, told)
        settings = parts.tune(work / MODEL_FILE, told)
        told("measuring", 0.0)
        cost = parts.measure(work / MODEL_FILE, settings)
        _refuse_over(file.budgets, cost)

        write_plan(work / PLAN_FILE, replace(file, plan=plan))
        if order.trials is not None and order.trials.is_file():
            shutil.copy(order.trials, work / TRIALS_FILE)
        if not order.keep_hf:
            _keep_map_alone(hf)
        manifest = Manifest(
            name=order.name,
            model_file=MODEL_FILE,
            model_sha256=sha256_file(work / MODEL_FILE),
            base_digest=order.base_digest,
            base_names=order.base_names,
            plan=plan,
            board=parts.board(),
            settings=settings,
            cost=cost,
            cut_file=CUT_FILE,
            adapters=tuple(c.name for c in carried),
            adapters_folder=ADAPTERS_FOLDER if carried else None,
            perplexity_before=found["original"],
            perplexity_after=found["built"],
            made_by=plan.made_by,
            facts={**order.facts, **_facts(found, logits, carried)},
        )
        write_manifest(work / FILE_NAME, manifest)
    return Built(
        folder=target, manifest=manifest, logits=logits, loaded=loaded, carried=carried,
        perplexities=found,
    )  # fmt: skip


def _refuse_bad(found: Mapping[str, float], order: Order) -> None:
    before, after = found["original"], found["built"]
    if not after <= order.max_ratio * before and not order.force:
        raise BadPlan(
            f"the perplexity would go from {before:.1f} to {after:.1f}, more than "
            f"{order.max_ratio:g} times; nothing was written. Cut less, recover with more steps, "
            "raise the bound with --max-ratio, or take it as it is with --force"
        )


def _refuse_different(check: LogitCheck) -> None:
    if not check.is_ok:
        raise BadModel(
            f"the GGUF computes something else than the Hugging Face folder: {check.greedy_same} "
            f"of {check.greedy_tokens} greedy tokens are equal, the largest difference is "
            f"{check.max_error:.3g} (at most {check.tolerance:g}); nothing was written"
        )


def _refuse_over(budgets: Budgets, cost: Cost) -> None:
    """Bytes are exact and must hold; times were held by the table and are reported as measured."""
    if broken := broken_budgets(Budgets(memory_bytes=budgets.memory_bytes), cost):
        raise BadPlan(
            f"the model that was built breaks its budget: {broken[0]}; nothing was written. Search "
            "again with the context and adapters it shall have"
        )


def _keep_map_alone(folder: Path) -> None:
    """Keep the index map, which carrying adapters takes, and leave out the weights."""
    for path in folder.iterdir():
        if path.name != Path(CUT_FILE).name:
            path.unlink()


def _facts(
    found: Mapping[str, float], logits: LogitCheck, carried: Sequence[Carried]
) -> dict[str, float | int | str | None]:
    facts: dict[str, float | int | str | None] = {
        "perplexity_pruned": found["pruned"],
        "perplexity_recovered": found.get("recovered"),
        "logit_max_error": logits.max_error,
        "logit_greedy_same": logits.greedy_same,
        "logit_greedy_tokens": logits.greedy_tokens,
    }
    for one in carried:
        facts[f"adapter_{one.name}_modules"] = one.modules
        facts[f"adapter_{one.name}_error"] = one.max_error
    return facts
