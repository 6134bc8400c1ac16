"""Part of `floe bench tailoring`: a tailored model beside the original in several types.

The joint plan (width, depth, bits, then recovery) is searched for under a share of the decode time
of the model as it is served (plain Q4_1, its head in Q8_0). Beside it: the original in F16, Q8_0,
as served, all in Q4_1; the original with the same recovery, in the served types and in the bits of
the joint plan. Recovery learns WikiText-2's validation part, perplexity is of its test part; the
weights at hand are dequantized Q4_1, so that plain Q4_1 costs nothing.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from floe.assemble.building import Wishes, Workshop, try_file
from floe.assemble.originals import types_of_file
from floe.assemble.tailoring import EngineTimer
from floe.core.errors import BadModel
from floe.core.files import atomic_write, sha256_file
from floe.core.gguf import read_header
from floe.deploy import HF_FOLDER, MODEL_FILE, Built, Model, Order, deploy
from floe.evaluation.tailoring_latency import device_of
from floe.evaluation.tailoring_setup import Figures, Say, Setup, open_setup, reload_here
from floe.tailoring.base import Budgets, CostModel
from floe.tailoring.genes import Choices, Levels
from floe.tailoring.gguf_quant import quantize_gguf, weights_bytes
from floe.tailoring.memory import kv_token_bytes, parameters
from floe.tailoring.memory import weights_bytes as weights_of
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.on_torch.hf_export import export_hf, layer_sizes
from floe.tailoring.on_torch.opened import Amounts
from floe.tailoring.on_torch.quality import perplexity
from floe.tailoring.on_torch.recover import RecoverySettings
from floe.tailoring.on_torch.reload import load_folder
from floe.tailoring.on_torch.rounding import rounded
from floe.tailoring.on_torch.speed import torch_ttft_ms
from floe.tailoring.plan import GROUPS, Plan
from floe.tailoring.plan_file import PlanFile, read_plan, write_plan
from floe.tailoring.records import Records
from floe.tailoring.rules import Rules
from floe.tailoring.run import run_search
from floe.tailoring.search.make import make_search
from floe.tailoring.search.seeds import heuristic_seeds
from floe.tailoring.shapes import whole_plan
from floe.tailoring.space import Space
from floe.tailoring.text import windows

CONTEXT_TOKENS = 2048
TTFT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """How much is done. The joint plan may take `share` of the served model's decode time, and
    `weights_share` of the F16 model's weights beside the cache.
    """

    share: float = 0.8
    weights_share: float = 0.36
    evaluations: int = 20
    recovery_steps: int = 60
    recovery_batch: int = 4
    test_windows: int = 16
    test_width: int = 256
    rounds: int = 5
    new_tokens: int = 8
    amounts: Amounts = dataclasses.field(default_factory=Amounts)


FULL = BuildPlan()
QUICK = BuildPlan(
    evaluations=6, recovery_steps=2, recovery_batch=2, test_windows=4, test_width=64, rounds=2,
    new_tokens=4,
    amounts=Amounts(judged_windows=2, judged_width=64, ranked_windows=2, ranked_width=128,
                    taylor_tokens=128),
)  # fmt: skip


def build_figures(full: bool, say: Say) -> Figures:
    """Speed, memory and perplexity of each model, and what the tailored one passed."""
    setup, plan = open_setup(full), FULL if full else QUICK
    bench = Bench(setup, plan, say)
    built = bench.joint()
    figures: Figures = {
        "reload_ok": int(loads_again(built)),
        "logit_check_max_error": built.logits.max_error,
        "logit_check_greedy_same": built.logits.greedy_same,
        "logit_check_greedy_tokens": built.logits.greedy_tokens,
        "logit_check": int(built.logits.is_ok),
        "joint_plan_layers": _layers(built.manifest.plan),
        "joint_plan_quants": json.dumps(dict(built.manifest.plan.quants)),
        "joint_share": plan.share,
        "recovery_steps": plan.recovery_steps,
        "joint_evaluations": plan.evaluations,
    }
    files = bench.files()
    figures |= bench.perplexities(built)
    figures |= bench.speeds(files)
    figures |= bench.ttft(files["tailored"])
    return {**figures, **compared(figures)}


def loads_again(built: Built) -> bool:
    """Whether both forms load from where they lie now: the folder with the plan's sizes, the file
    in a process of its own with the same tokens as when it was built.
    """
    plan = built.manifest.plan
    try:
        model = load_folder(built.folder / HF_FOLDER)
        tokens = try_file(built.folder / MODEL_FILE).tokens
    except BadModel:
        return False
    kept = [part.n_ffn for part in plan.layers if not part.dropped]
    return [s["n_ffn"] for s in layer_sizes(model)] == kept and tokens == built.loaded.tokens


def compared(f: Mapping[str, Any]) -> Figures:
    """The tailored model over the others; above 1 is faster, below 1 is smaller or better."""
    out: Figures = {}
    for other in ("f16", "q8_0", "served", "q4_1", "q4_0"):
        out[f"speedup_prefill_over_{other}"] = f[f"prefill_ms_{other}"] / f["prefill_ms_tailored"]
        out[f"speedup_decode_over_{other}"] = f[f"decode_ms_{other}"] / f["decode_ms_tailored"]
        out[f"memory_ratio_over_{other}"] = (
            f["weights_bytes_tailored"] / f[f"weights_bytes_{other}"]
        )
        out[f"ppl_over_{other}"] = f["ppl_tailored"] / f[f"ppl_{other}"]
    for other in ("bits", "served_recovered", "bits_recovered"):
        out[f"ppl_over_{other}"] = f["ppl_tailored"] / f[f"ppl_{other}"]
    out["speedup_decode_over_bits_recovered"] = f["decode_ms_bits"] / f["decode_ms_tailored"]
    return out | {
        "speedup_prefill": out["speedup_prefill_over_f16"],
        "speedup_decode": out["speedup_decode_over_f16"],
        "memory_ratio": out["memory_ratio_over_f16"],
        "ppl_rise": out["ppl_over_f16"] - 1.0,
        "memory_ratio_with_cache": f["memory_bytes_tailored"] / f["memory_bytes_f16"],
    }


class Bench:
    """One form; what was built is kept in the results."""

    def __init__(self, setup: Setup, plan: BuildPlan, say: Say) -> None:
        """Nothing is loaded yet."""
        self._setup, self._plan, self._say = setup, plan, say
        self._folder = setup.results / "builds"
        self._folder.mkdir(exist_ok=True)
        self.served = types_of_file(setup.original.gguf)
        settings = RecoverySettings(
            steps=plan.recovery_steps, batch=plan.recovery_batch, distill=0.0, threads=1
        )
        wishes = Wishes(
            text=setup.calibration, amounts=plan.amounts, recovery=settings, tune=False,
            settings=setup.timer().settings, new_tokens=plan.new_tokens,
        )  # fmt: skip
        self.workshop = Workshop(setup.original, wishes, home=setup.results)

    def joint(self) -> Built:
        """The tailored model, built as `floe tailor build` does."""
        plan = self._searched()
        target = self._folder / "tailored"
        shutil.rmtree(target, ignore_errors=True)
        original, parts = self._setup.original, self.workshop.parts()
        if not self._setup.full:
            parts = dataclasses.replace(parts, export_hf=self._export_here)
        order = Order(
            name="tailored", base_digest=original.shape.base_digest, base_names=original.names,
            plan=plan, quants=self.served, force=True,
        )  # fmt: skip
        return deploy(order, target, parts, told=self._told())

    def recovered(self) -> Model:
        """The uncut model with the same recovery."""
        kept = self._folder / "recovered"
        if kept.is_dir():
            return load_folder(kept)
        workshop = self.workshop
        pruned = workshop.prune(dataclasses.replace(whole_plan(self._shape), importance="taylor"))
        model = workshop.recover(pruned.model, self._told())
        if self._setup.full:
            export_hf(
                model, kept, source=self._setup.original.folder, cut=pruned.cut, reload=reload_here
            )
        return model

    def files(self) -> dict[str, Path]:
        """The GGUF of each model to time."""
        original, bits = self._setup.original.gguf, self.bits()
        made = {
            "f16": _all("F16"),
            "q8_0": _all("Q8_0"),
            "q4_1": _all("Q4_1"),
            "q4_0": _all("Q4_0"),
            "bits": bits,
        }
        out = {"served": original, "tailored": self._folder / "tailored" / MODEL_FILE}
        for name, quants in made.items():
            out[name] = self._folder / f"{name}.gguf"
            if not out[name].is_file():
                quantize_gguf(original, out[name], quants)
        return out

    def bits(self) -> dict[str, str]:
        """The joint plan's types."""
        return {**self.served, **self._searched().plan.quants}

    def perplexities(self, built: Built) -> Figures:
        """On the test part, each model rounded as its types keep it."""
        kept = self._folder / "perplexities.json"
        key = sha256_file(built.folder / MODEL_FILE)
        if kept.is_file() and (found := json.loads(kept.read_text()))["key"] == key:
            return dict(found["figures"])
        original = self.workshop.opened.model
        tailored = load_folder(built.folder / HF_FOLDER)
        recovered = self.recovered()
        figures = {}
        for name, model, quants, weighted in (
            ("f16", original, _all("F16"), False),
            ("q8_0", original, _all("Q8_0"), False),
            ("served", original, self.served, False),
            ("q4_1", original, _all("Q4_1"), False),
            ("q4_0", original, _all("Q4_0"), False),
            ("bits", original, self.bits(), True),
            ("served_recovered", recovered, self.served, True),
            ("bits_recovered", recovered, self.bits(), True),
            ("tailored", tailored, built.manifest.plan.quants, True),
        ):
            figures[f"ppl_{name}"] = self._tested(model, quants, weighted=weighted)
            self._say(f"{name}: perplexity {figures[f'ppl_{name}']:.2f} on the test text")
        with atomic_write(kept) as file:
            file.write(json.dumps({"key": key, "figures": figures}).encode())
        return figures

    def speeds(self, files: Mapping[str, Path]) -> Figures:
        """In turns, forwards and backwards; of each the quietest look counts."""
        timer = self._setup.timer(decode_tokens=24)
        looks: dict[str, list[Any]] = {name: [] for name in files}
        for turn in range(self._plan.rounds):
            for name in list(files) if turn % 2 == 0 else reversed(list(files)):
                looks[name].append(timer(files[name]))
        out: Figures = {"prompt_tokens": timer.prompt_tokens}
        for name, found in looks.items():
            out[f"decode_ms_{name}"] = min(t.decode_ms for t in found)
            out[f"prefill_ms_{name}"] = min(t.prefill_ms for t in found)
            weights = weights_bytes(read_header(files[name]))
            layers = self._searched().plan if name == "tailored" else whole_plan(self._shape)
            cache = CONTEXT_TOKENS * kv_token_bytes(self._shape, layers)
            out[f"weights_bytes_{name}"] = weights
            out[f"memory_bytes_{name}"] = weights + cache
        return out

    def ttft(self, tailored: Path) -> Figures:
        """Milliseconds to the first token of a prompt, transformers in F32 over ours."""
        ids = self.workshop.opened.quality.judged.flatten().tolist()[:TTFT_TOKENS]
        in_torch = torch_ttft_ms(self.workshop.opened.model, ids, rounds=self._plan.rounds)
        timer = EngineTimer(
            settings=self._setup.timer().settings, cpu_time=True, prompt_tokens=len(ids),
            decode_tokens=2, repeats=self._plan.rounds,
        )  # fmt: skip
        ours = timer(tailored).prefill_ms
        return {
            "ttft_ms_torch": in_torch,
            "ttft_ms_tailored": ours,
            "ttft_ratio_torch": in_torch / ours,
            "ttft_prompt_tokens": len(ids),
        }

    @property
    def _shape(self) -> Any:
        return self._setup.original.shape

    def _searched(self) -> PlanFile:
        """The joint plan, searched for once."""
        path = self._folder / "plan.json"
        if path.is_file():
            return read_plan(path)
        costs = self._costs()
        served = dataclasses.replace(whole_plan(self._shape), quants=self.served)
        f16 = dataclasses.replace(served, quants=_all("F16"))
        cache = CONTEXT_TOKENS * kv_token_bytes(self._shape, served)
        budgets = Budgets(
            decode_ms=self._plan.share * costs.cost(served).decode_ms,
            memory_bytes=round(self._plan.weights_share * weights_of(self._shape, f16)) + cache,
        )
        space = Space(
            shape=self._shape, cost=costs, budgets=budgets, rules=Rules(),
            choices=Choices(
                importances=("flap",),
                quants={"embedding": ("Q4_0", "Q4_1", "Q5_1", "Q8_0"),
                        "attention": ("Q4_0", "Q4_1", "Q8_0"), "ffn": ("Q4_0", "Q4_1", "Q8_0")},
            ),
        )  # fmt: skip
        quality = self.workshop.opened.quality
        label = {"share": self._plan.share, "digest": self._shape.base_digest}
        seeds = (*bit_seeds(space), *heuristic_seeds(space, quality.importances))
        with Records(self._folder / "plan.trials.jsonl", label=label) as records:
            found = run_search(
                make_search("evolutionary", space=space, seed=0, seeds=seeds),
                space=space, quality=quality, n_evaluations=self._plan.evaluations,
                records=records,
                on_step=lambda s: self._say(
                    f"plan {s.done} of {s.total}, best perplexity {s.best.perplexity:.1f}"
                ),
            )  # fmt: skip
        write_plan(path, PlanFile(plan=found.best.plan, budgets=budgets))
        return read_plan(path)

    def _costs(self) -> CostModel:
        """The device's table; by bytes in the quick form, whose profile has one type."""
        if self._setup.full:
            return device_of(self._setup, self._say).costs()
        return ModelledCost(shape=self._shape)

    def _tested(self, model: Model, quants: Mapping[str, str], *, weighted: bool) -> float:
        plan, opened = self._plan, self.workshop.opened
        ids = opened.tokenizer.encode(self._setup.test, add_special_tokens=False).ids
        judged = windows(ids, n_windows=plan.test_windows, width=plan.test_width)
        like = opened.quality.judged
        rounding = opened.rounding if weighted else rounded
        return perplexity(rounding(model, quants), like.new_tensor(judged))

    def _export_here(self, model: Model, target: Path, cut: Any) -> None:
        """Loaded again in this process: a new one takes too long for the quick form."""
        export_hf(model, target, source=self._setup.original.folder, cut=cut, reload=reload_here)

    def _told(self) -> Any:
        seen = [""]

        def told(text: str, share: float) -> None:
            step = text.partition(",")[0]
            if step != seen[0] or (share and round(20 * share) % 5 == 0 and "recover" in text):
                seen[0] = step
                self._say(f"{text}")

        return told


def bit_seeds(space: Space, *, n: int = 6) -> tuple[Levels, ...]:
    """Of every choice of types the plan that fits; the `n` of them that keep most weights.

    More bits are not always slower: some types have kernels of their own.
    """
    at = [i for i, gene in enumerate(space.genes) if gene.kind == "quant"]
    found: dict[Levels, int] = {}
    for chosen in product(*(range(space.genes[i].top + 1) for i in at)):
        levels = list(space.highest)
        for i, level in zip(at, chosen, strict=True):
            levels[i] = level
        made = space.repair_levels(levels)
        found[made] = parameters(space.shape, space.plan(made))
    return tuple(sorted(found, key=lambda levels: -found[levels])[:n])


def _all(quant: str) -> dict[str, str]:
    return dict.fromkeys(GROUPS, quant)


def _layers(plan: Plan) -> str:
    return " ".join(f"{p.n_kv_heads * p.q_per_kv}+{p.n_ffn}" for p in plan.layers)
