"""Building a tailored model's concrete choices: the original, its text, engine, adapters.

Opened by `floe tailor` and benchmarks: it pulls torch in.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from floe.adapters.verify import PROMPTS
from floe.assemble.names import cpu_count
from floe.assemble.originals import BaseAdapter, Original, adapters_of, state_of
from floe.assemble.tailored import this_board
from floe.assemble.tailoring import (
    EngineLook,
    EngineTimer,
    check_in_child,
    file_kv_bytes,
)
from floe.core.config import Config
from floe.core.errors import BadAdapter, NotFound
from floe.core.gguf import read_header
from floe.deploy import Carried, Model, Parts, Pruned, Told
from floe.engine.llamacpp import LlamaCppEngine
from floe.federated.peft_folder import write_peft_folder
from floe.federated.update import AdapterState
from floe.tailoring import gguf_quant, validate
from floe.tailoring.base import Cost
from floe.tailoring.carry import HF_NAMES, carry
from floe.tailoring.child_load import Loaded
from floe.tailoring.cut import make_cut
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.logit_check import LogitCheck, logit_check
from floe.tailoring.on_torch.carried import TOLERANCE, carry_error
from floe.tailoring.on_torch.hf_export import export_hf
from floe.tailoring.on_torch.importance import make_importance
from floe.tailoring.on_torch.opened import Amounts, Opened, open_quality
from floe.tailoring.on_torch.prune import Compensation, compensation, prune
from floe.tailoring.on_torch.quality import perplexity
from floe.tailoring.on_torch.recover import RecoverySettings, recover
from floe.tailoring.on_torch.reload import log_probs_of
from floe.tailoring.plan import COMPENSATED, Cut, Plan
from floe.tailoring.plan_file import PlanFile
from floe.tailoring.tensors import Tensors, from_hf_folder
from floe.tailoring.text import sample_text, windows
from floe.tailoring.tune import Settings, candidates, tune


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A few steps that a carried adapter is trained again, on examples of its own task.

    `examples` by the adapter's name; adapters without stay as carried.
    """

    examples: Mapping[str, Sequence[Any]]
    steps: int = 10
    batch: int = 4
    learning_rate: float = 2e-4


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """How a model is built. `text` calibrates with its first half and judges with its second.

    `tune` False keeps `settings`; `tune_rounds` looks at each candidate.
    """

    text: str = field(default_factory=sample_text, repr=False)
    amounts: Amounts = field(default_factory=Amounts)
    recovery: RecoverySettings | None = None
    recovery_width: int = 128
    repair: Repair | None = None
    settings: Settings = field(default_factory=Settings)
    tune: bool = True
    tune_rounds: int = 2
    threads: int = 1
    new_tokens: int = 8


class Workshop:
    """What building needs, opened when it is first asked for and kept."""

    def __init__(
        self, original: Original, wishes: Wishes, *, home: Path, config: Config | None = None
    ) -> None:
        """`config` says where the original's adapters lie."""
        self.original, self.wishes, self._home = original, wishes, home
        self._config = config or Config()
        self._kept: tuple[Cut, Compensation | None] | None = None

    def parts(self, *, find_plan: Callable[[Told], PlanFile] | None = None) -> Parts:
        """The parts of `deploy`; without `find_plan` a plan must be given there."""
        return Parts(
            find_plan=find_plan or _no_plan,
            prune=self.prune,
            recover=self.recover if self.wishes.recovery else None,
            perplexity=self.perplexity,
            export_hf=self.export_hf,
            export_gguf=self.export_gguf,
            check_logits=self.check_logits,
            quantize=self.quantize,
            try_file=try_file,
            find_adapters=self.find_adapters,
            carry=self.carry,
            tune=self.tune,
            measure=self.measure,
            board=this_board,
        )

    @cached_property
    def opened(self) -> Opened:
        """The original in memory with its statistics."""
        return open_quality(
            self.original.folder, self.wishes.text, shape=self.original.shape,
            amounts=self.wishes.amounts, threads=self.wishes.threads,
        )  # fmt: skip

    def prune(self, plan: Plan) -> Pruned:
        """The smaller model with memory of its own. Raises BadPlan as `make_cut`."""
        opened = self.opened
        scores = make_importance(plan.importance, statistics=opened.statistics).measure()
        cut = make_cut(plan, opened.shape, scores)
        bias = None
        if plan.importance in COMPENSATED:
            bias = compensation(opened.model, cut, opened.statistics)
        self._kept = (cut, bias)
        return Pruned(model=prune(opened.model, cut, compensation=bias), cut=cut)

    def recovery_windows(self) -> list[list[int]]:
        """All of the text's first half, which nothing is judged on."""
        ids = self.opened.tokenizer.encode(self.wishes.text, add_special_tokens=False).ids
        first, width = ids[: len(ids) // 2], self.wishes.recovery_width
        return windows(first, n_windows=len(first) // width, width=width)

    def recover(self, model: Model, told: Told) -> Model:
        """The model trained again for a few steps, merged."""
        assert self.wishes.recovery is not None
        settings = self.wishes.recovery
        teacher = self.opened.model if settings.distill else None
        with warnings.catch_warnings():  # PEFT reads a property that transformers is to rename
            warnings.filterwarnings("ignore", r".*is_gradient_checkpointing", FutureWarning)
            done = recover(
                model.requires_grad_(False), self.recovery_windows(), settings, teacher=teacher,
                base_name=self.original.names[0],
                progress=lambda n, all_, loss: told(f"recovering, loss {loss:.2f}", n / all_),
            )  # fmt: skip
        return done.merged().eval().requires_grad_(False)

    def perplexity(self, model: Model | None, quants: Mapping[str, str]) -> float:
        """On the text's second half, the weights rounded as the types keep them."""
        judged = self.opened.model if model is None else model
        return perplexity(self.opened.rounding(judged, quants), self.opened.quality.judged)

    def export_hf(self, model: Model, target: Path, cut: Cut) -> None:
        """As a Hugging Face folder, loaded again before it has its name."""
        export_hf(model, target, source=self.original.folder, cut=cut)

    def export_gguf(self, folder: Path, target: Path, name: str) -> None:
        """The folder's weights in F32 with the original's tokenizer."""
        tensors = without_zero_biases(from_hf_folder(folder))
        extra = {"general.name": name}
        export_gguf(tensors, target, metadata_from=self.original.gguf, extra=extra)

    def check_logits(self, model: Model, path: Path) -> LogitCheck:
        """The model in torch against the file in the serving engine, both in F32."""
        return logits_of_both(model, path, new_tokens=self.wishes.new_tokens)

    def quantize(
        self, model: Model, source: Path, target: Path, quants: Mapping[str, str], told: Told
    ) -> None:
        """The file of `model` in the plan's types, scales weighted by its inputs."""
        tied = self.original.shape.tied_embeddings
        gguf_quant.quantize_gguf(
            source, target, quants, importance=self.opened.rounding.by_tensor(model, tied=tied),
            on_tensor=lambda _name, done, total: told("quantizing", done / total),
        )  # fmt: skip

    def find_adapters(self, names: Sequence[str]) -> Sequence[BaseAdapter]:
        """The original's adapters. Raises NotFound, BadAdapter."""
        if not names:
            return ()
        return adapters_of(self._config, self.original, names, home=self._home)

    def carry(
        self, found: Sequence[BaseAdapter], pruned: Pruned, model: Model, folder: Path, told: Told
    ) -> tuple[Carried, ...]:
        """Each adapter as a PEFT folder for the smaller model.

        Raises:
            BadAdapter: one that cannot be carried over.
        """
        out = []
        for n, adapter in enumerate(found):
            told(f"carrying {adapter.name} over", n / len(found))
            out.append(self._carry(adapter, pruned.cut, model, folder / adapter.name))
        return tuple(out)

    def _carry(self, adapter: BaseAdapter, cut: Cut, model: Model, folder: Path) -> Carried:
        opened = self.opened
        carried = carry(adapter.modules, cut, opened.shape, names=HF_NAMES)
        texts = [opened.tokenizer.encode(t, add_special_tokens=False).ids for t in PROMPTS[:2]]
        bias = self._kept[1] if self._kept is not None else None
        error = carry_error(opened.model, cut, adapter.modules, carried, texts, compensation=bias)
        if not error <= TOLERANCE:
            raise BadAdapter(
                f"adapter {adapter.name!r}: carried over it differs by {error:.3g} from what it "
                f"does on the masked original (at most {TOLERANCE:g}). Report this"
            )
        state = state_of(carried, base_digest=self.original.shape.base_digest)
        losses: tuple[float, ...] = ()
        if (repair := self.wishes.repair) and adapter.name in repair.examples:
            state, losses = self.repaired(state, model, repair, adapter.name)
        facts = {
            **adapter.facts,
            "carried_from": adapter.digest,
            "description": adapter.description,
        }
        write_peft_folder(
            state, folder, self.original.names[0], facts=facts, centroid=adapter.centroid
        )
        return Carried(
            name=adapter.name, modules=len(carried), modules_before=len(adapter.modules),
            max_error=error, repair_losses=losses,
        )  # fmt: skip

    def repaired(
        self, state: AdapterState, model: Model, repair: Repair, name: str
    ) -> tuple[AdapterState, tuple[float, ...]]:
        """The adapter after a few steps on the smaller model, and the losses on its examples."""
        from floe.federated.on_torch.base_model import load_base
        from floe.federated.on_torch.train import LoraTrainer
        from floe.federated.rows import rows_of
        from floe.federated.settings import TrainSettings

        whole = load_base(self.original.folder, digest=state.base_digest)
        base = dataclasses.replace(whole, model=model)
        rows, _ = rows_of(repair.examples[name], base.encode, max_tokens=256)
        settings = TrainSettings(
            steps=repair.steps, batch=repair.batch, learning_rate=repair.learning_rate,
            targets=tuple(sorted({m.rpartition(".")[2] for m in state.modules})),
            threads=self.wishes.threads,
        )  # fmt: skip
        losses: list[float] = []
        trainer = LoraTrainer(
            base=base, train=rows, validation=(), settings=settings,
            progress=lambda r: losses.append(r.loss) if r.loss is not None else None,
        )  # fmt: skip
        return trainer.fit(state, rank=state.rank, seed=0).state, tuple(losses)

    def tune(self, path: Path, told: Told) -> Settings:
        """The engine's settings by measurement, unless `wishes.tune` is off."""
        start = self.wishes.settings
        if not start.threads:
            start = dataclasses.replace(start, threads=cpu_count())
        if not self.wishes.tune:
            return start
        timer = EngineTimer(settings=start)
        told("tuning the engine", 0.0)
        found = tune(
            candidates(cores=cpu_count()), EngineLook(model=path, timer=timer), start=start,
            prompt_tokens=timer.prompt_tokens, rounds=self.wishes.tune_rounds,
            told=lambda text: told(f"tuning the engine, {text}", 0.5),
        )  # fmt: skip
        return found.settings

    def measure(self, path: Path, settings: Settings) -> Cost:
        """What the file costs here; adapters beside it count with half their F32 bytes."""
        timing = EngineTimer(settings=settings)(path)
        beside = path.parent.glob("adapters/*/adapter_model.safetensors")
        adapters = sum(p.stat().st_size // 2 for p in beside)
        weights = gguf_quant.weights_bytes(read_header(path))
        return Cost(
            prefill_ms=timing.prefill_ms,
            decode_ms=timing.decode_ms,
            memory_bytes=weights + file_kv_bytes(path, settings) + adapters,
            source="measured",
        )


def try_file(path: Path) -> Loaded:
    """Judge the header, then load the file in a process of its own. Raises BadModel."""
    validate.validate_gguf(path)
    return check_in_child(path)


def without_zero_biases(tensors: Tensors) -> Tensors:
    """Biases that are all zero left out: Hugging Face's Llama has all of them or none."""
    shapes = {
        name: shape
        for name, shape in tensors.shapes.items()
        if not name.endswith(".bias") or tensors.load(name).any()
    }
    return dataclasses.replace(tensors, shapes=shapes)


def logits_of_both(model: Model, path: Path, *, new_tokens: int = 8) -> LogitCheck:
    """`logit_check` of a model in torch and a GGUF in F32 in the serving engine."""
    engine = LlamaCppEngine(path, digest="checked", threads=1, context_tokens=256, kv_f32=True)
    n_vocab = engine.vocabulary.n_vocab

    def in_torch(ids: Sequence[int]) -> Any:
        found = log_probs_of(model, [ids])[0][:, :n_vocab]
        return found - np.logaddexp.reduce(found, axis=1, keepdims=True)

    def in_engine(ids: Sequence[int]) -> Any:
        session = engine.session().result()
        try:
            return session.feed(list(ids), every=True)
        finally:
            session.close()

    try:
        prompts = [engine.tokenize(text) for text in PROMPTS[:3]]
        return logit_check(in_torch, in_engine, prompts, new_tokens=new_tokens)
    finally:
        engine.close()


def _no_plan(_told: Told) -> PlanFile:
    raise NotFound("there is no plan to build; make one with: floe tailor search")
