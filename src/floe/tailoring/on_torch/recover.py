"""Recovery after pruning: a LoRA trained on the smaller model, merged into it or kept beside it.

CLONE recovers with r = 8, alpha = 16 on instruction text (paper, section on offline tailoring);
distillation from the unpruned model is our addition: Kullback-Leibler divergence over the
teacher's `top_k` tokens and one bucket for all others.

Legend: B windows of a batch, T tokens of a window, V vocabulary, K the teacher's top tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import peft
import torch

from floe.core.errors import BadConfig, FloeError
from floe.core.schedule import schedule
from floe.tailoring.on_torch.blocks import ATTENTION, FFN

Model: TypeAlias = Any
Tensor: TypeAlias = Any
Progress = Callable[[int, int, float], None]
"""Called after each step with steps done, steps in all, and the step's loss in nats a token."""


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """How a pruned model is trained again.

    `distill` is the share of the teacher's loss beside the next token's; it needs a teacher.
    """

    rank: int = 8
    alpha: float = 16.0
    steps: int = 60
    batch: int = 4
    learning_rate: float = 5e-4
    warmup_steps: int = 5
    distill: float = 0.0
    top_k: int = 32
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        """Raises BadConfig for a number out of range."""
        for name in ("rank", "steps", "batch", "top_k", "threads"):
            if getattr(self, name) < 1:
                raise BadConfig(f"{name} must be 1 or more", param=name)
        if not 0.0 <= self.distill <= 1.0:
            raise BadConfig("distill must be between 0 and 1", param="distill")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise BadConfig("learning_rate must be finite and above 0", param="learning_rate")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """What came of it: the wrapped model, and the loss of every step."""

    model: Model
    losses: tuple[float, ...]

    def merged(self) -> Model:
        """The pruned model with the adapter in its weights, as a plain model."""
        return self.model.merge_and_unload()

    def save_adapter(self, folder: str) -> None:
        """The adapter as a PEFT folder, for a model that keeps it apart."""
        self.model.save_pretrained(folder, safe_serialization=True)


def recover(
    model: Model,
    windows: Sequence[Sequence[int]],
    settings: RecoverySettings,
    *,
    teacher: Model | None = None,
    base_name: str = "",
    progress: Progress = lambda *_: None,
) -> Recovery:
    """Train a LoRA on `model` (changed in place by the wrapping) over token windows of one length.

    `windows` must not hold text that the model is judged by afterwards.

    Raises:
        BadConfig: no windows, of unequal length, or distillation without a teacher.
        FloeError: the loss is no number any more.
    """
    _check(windows, settings, teacher)
    torch.set_num_threads(settings.threads)
    wrapped = _wrapped(model, settings, base_name)
    weights = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(settings.seed)
    ids_NT = torch.tensor([list(w) for w in windows])
    losses = []
    wrapped.train()
    for step in range(settings.steps):
        batch_BT = ids_NT[torch.randint(len(ids_NT), (settings.batch,), generator=generator)]
        loss = _loss(wrapped, batch_BT, settings, teacher)
        if not torch.isfinite(loss):
            raise FloeError(
                f"recovery: the loss is no number in step {step + 1}; lower the learning rate"
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(
                step, steps=settings.steps, warmup_steps=settings.warmup_steps
            )
        optimizer.step()
        losses.append(float(loss.detach()))
        progress(step + 1, settings.steps, losses[-1])
    return Recovery(model=wrapped.eval(), losses=tuple(losses))


def distillation_loss(student_BTV: Tensor, teacher_BTV: Tensor, *, top_k: int) -> Tensor:
    """Mean KL(teacher || student) in nats over the teacher's `top_k` tokens and the rest as one."""
    teacher_BTV = torch.log_softmax(teacher_BTV.float(), dim=-1)
    student_BTV = torch.log_softmax(student_BTV.float(), dim=-1)
    top_BTK, where_BTK = teacher_BTV.topk(min(top_k, teacher_BTV.shape[-1] - 1), dim=-1)
    mine_BTK = student_BTV.gather(-1, where_BTK)
    kl_BT = (top_BTK.exp() * (top_BTK - mine_BTK)).sum(-1)
    rest, my_rest = (
        torch.log1p(-p.exp().sum(-1).clamp(max=1.0 - 1e-6)) for p in (top_BTK, mine_BTK)
    )
    return (kl_BT + rest.exp() * (rest - my_rest)).mean()


def _check(
    windows: Sequence[Sequence[int]], settings: RecoverySettings, teacher: Model | None
) -> None:
    lengths = {len(w) for w in windows}
    if len(lengths) != 1 or lengths <= {0, 1}:
        raise BadConfig("recovery needs windows of one length, of two tokens or more each")
    if settings.distill and teacher is None:
        raise BadConfig("distill is above 0 and there is no unpruned model to learn from")


def _wrapped(model: Model, settings: RecoverySettings, base_name: str) -> Model:
    torch.manual_seed(settings.seed)
    present = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=[name for name in (*ATTENTION, *FFN) if name in present],
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    wrapped = peft.get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = base_name
    return wrapped


def _loss(
    model: Model, batch_BT: Tensor, settings: RecoverySettings, teacher: Model | None
) -> Tensor:
    logits_BTV = model(input_ids=batch_BT, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), batch_BT[:, 1:].flatten()
    )
    if teacher is None or not settings.distill:
        return loss
    with torch.no_grad():
        taught_BTV = teacher(input_ids=batch_BT, use_cache=False).logits[:, :-1]
    taught = distillation_loss(logits_BTV, taught_BTV, top_k=settings.top_k)
    return (1.0 - settings.distill) * loss + settings.distill * taught
