"""Recovery: a LoRA on the smaller model, merged into plain weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tailoring_cuts import cut_of

from floe.core.errors import BadConfig, FloeError
from floe.tailoring.on_torch.prune import prune
from floe.tailoring.on_torch.recover import RecoverySettings, distillation_loss, recover
from floe.tailoring.plan import ModelShape

CUT = ((1, 2, 64), (2, 1, 32), (0, 1, 96), (2, 2, 96))


def _windows(n: int = 12, length: int = 16) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [[int(t) for t in rng.integers(3, 40, length)] for _ in range(n)]


@torch.no_grad()
def _loss(model: Any, windows: list[list[int]]) -> float:
    ids = torch.tensor(windows)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


def test_the_loss_falls_and_merging_keeps_the_function(model: Any, shape: ModelShape) -> None:
    windows = _windows()
    small = prune(model, cut_of(shape, *CUT))
    before = _loss(small, windows)
    settings = RecoverySettings(steps=30, learning_rate=5e-3, warmup_steps=2)
    seen: list[tuple[int, int]] = []
    recovery = recover(small, windows, settings, progress=lambda n, of, _: seen.append((n, of)))
    apart = _loss(recovery.model, windows)
    merged = recovery.merged()
    assert apart < before - 0.2
    assert _loss(merged, windows) == pytest.approx(apart, abs=1e-4)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert seen == [(n + 1, 30) for n in range(30)]
    assert len(recovery.losses) == 30


def test_the_same_seed_gives_the_same_losses(model: Any, shape: ModelShape) -> None:
    settings = RecoverySettings(steps=3)
    runs = [recover(prune(model, cut_of(shape, *CUT)), _windows(), settings) for _ in range(2)]
    assert runs[0].losses == runs[1].losses


def test_distillation_moves_the_pruned_model_towards_the_whole_one(
    model: Any, shape: ModelShape
) -> None:
    ids = torch.tensor(_windows())

    def distance(student: Any) -> float:
        with torch.no_grad():
            outputs = [m(input_ids=ids, use_cache=False).logits for m in (student, model)]
        return float(distillation_loss(*outputs, top_k=8))

    small = prune(model, cut_of(shape, *CUT))
    before = distance(small)
    settings = RecoverySettings(steps=30, learning_rate=5e-3, distill=1.0, top_k=8)
    after = distance(recover(small, _windows(), settings, teacher=model).model)
    assert after < 0.7 * before


def test_distillation_loss_is_the_divergence_over_buckets() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, 2, 9, generator=generator) for _ in range(2))
    expected = []
    for t in range(2):
        p, q = teacher[0, t].softmax(-1).tolist(), student[0, t].softmax(-1).tolist()
        top = sorted(range(9), key=lambda i: -p[i])[:3]
        kept = sum(p[i] * math.log(p[i] / q[i]) for i in top)
        rest_p, rest_q = 1 - sum(p[i] for i in top), 1 - sum(q[i] for i in top)
        expected.append(kept + rest_p * math.log(rest_p / rest_q))
    got = float(distillation_loss(student, teacher, top_k=3))
    assert got == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert float(distillation_loss(teacher, teacher, top_k=3)) == pytest.approx(0.0, abs=1e-6)


def test_what_cannot_be_done_is_said(model: Any, shape: ModelShape) -> None:
    small = prune(model, cut_of(shape, *CUT))
    with pytest.raises(BadConfig, match="of one length"):
        recover(small, [[1, 2], [1, 2, 3]], RecoverySettings())
    with pytest.raises(BadConfig, match="of one length"):
        recover(small, [], RecoverySettings())
    with pytest.raises(BadConfig, match="no unpruned model"):
        recover(small, _windows(), RecoverySettings(distill=0.5))
    for wrong in ({"rank": 0}, {"distill": 1.5}, {"learning_rate": math.nan}):
        with pytest.raises(BadConfig, match="must be"):
            RecoverySettings(**wrong)  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_ends_it(model: Any, shape: ModelShape) -> None:
    small = prune(model, cut_of(shape, *CUT))
    small.model.norm.weight.data[0] = math.nan
    with pytest.raises(FloeError, match="step 1; lower the learning rate"):
        recover(small, _windows(), RecoverySettings(steps=2))
