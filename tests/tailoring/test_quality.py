"""Perplexity of plans on a tiny model, against slow twins."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from floe.core.errors import BadPlan, BadRequest, NotFound
from floe.tailoring.cut import make_cut
from floe.tailoring.gguf_quant import TYPE_IDS, dequantize, quantize
from floe.tailoring.plan import LayerPlan, Plan
from floe.tailoring.shapes import whole_plan
from floe.tailoring.text import detokenized, read_text, sample_text, windows


@pytest.fixture(scope="module")
def ids(shape):
    rng = np.random.default_rng(0)
    return [list(map(int, rng.integers(0, shape.n_vocab - 5, 24))) for _ in range(6)]


@pytest.fixture(scope="module")
def quality(model, shape, ids):
    from floe.tailoring.on_torch.collect import collect
    from floe.tailoring.on_torch.quality import TorchQuality

    return TorchQuality(
        model=model, shape=shape, statistics=collect(model, ids[:3], shape=shape),
        windows=ids[3:], importances=("flap", "taylor"),
    )  # fmt: skip


def smaller(shape, importance="taylor", **more):
    layers = list(whole_plan(shape).layers)
    layers[1] = LayerPlan(n_kv_heads=1, q_per_kv=1, n_ffn=32)
    layers[2] = LayerPlan(n_kv_heads=0, q_per_kv=0, n_ffn=64)
    return Plan(base_digest=shape.base_digest, layers=tuple(layers), importance=importance, **more)


def slow_perplexity(model, ids):
    import torch

    losses = []
    for one in ids:
        with torch.no_grad():
            logits = model(torch.tensor([one])).logits[0].double()
        log_probs = torch.log_softmax(logits, -1)
        losses += [-float(log_probs[t, one[t + 1]]) for t in range(len(one) - 1)]
    return math.exp(np.mean(losses))


def test_the_whole_plans_perplexity_is_the_models(quality, model, shape, ids):
    assert quality.perplexity(whole_plan(shape)) == pytest.approx(
        slow_perplexity(model, ids[3:]), rel=1e-5
    )


@pytest.mark.parametrize("importance", ["taylor", "flap"])
def test_a_cut_plans_perplexity_is_the_masked_models(quality, model, shape, ids, importance):
    from floe.tailoring.on_torch.prune import compensation, mask_model

    plan = smaller(shape, importance)
    cut = make_cut(plan, shape, quality.importances[importance])
    bias = compensation(model, cut, quality._statistics) if importance == "flap" else None
    masked = mask_model(model, cut, compensation=bias)
    assert quality.perplexity(plan) == pytest.approx(slow_perplexity(masked, ids[3:]), rel=1e-4)


def test_a_plan_is_judged_once_whoever_made_it(quality, shape):
    plan = smaller(shape, "flap", made_by="one")
    first = quality.perplexity(plan)
    runs = quality.runs
    assert quality.perplexity(dataclasses.replace(plan, made_by="another")) == first
    assert quality.runs == runs


def test_few_bits_cost_perplexity_and_the_model_stays_as_it_was(quality, model, shape, ids):
    before = slow_perplexity(model, ids[3:])
    whole = whole_plan(shape)
    found = {
        quant: quality.perplexity(
            dataclasses.replace(
                whole, quants=dict.fromkeys(("embedding", "attention", "ffn", "output"), quant)
            )
        )
        for quant in ("F32", "Q8_0", "Q4_0")
    }
    plain = quality.perplexity(whole)
    assert found["F32"] == pytest.approx(plain, rel=1e-6)
    assert abs(math.log(found["Q8_0"] / plain)) < abs(math.log(found["Q4_0"] / plain)) + 0.02
    assert found["Q8_0"] != plain
    assert slow_perplexity(model, ids[3:]) == before


@pytest.mark.parametrize("quant", ["F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_rounding_is_what_gguf_keeps(quant, one_thread):
    import torch

    from floe.tailoring.on_torch.rounding import round_weight

    weight = np.random.default_rng(1).normal(0, 0.05, (48, 96)).astype(np.float32)
    weight[3] = 0.0
    expected = dequantize(quantize(weight, quant), TYPE_IDS[quant], weight.shape)
    found = round_weight(torch.from_numpy(weight), quant).numpy()
    step = np.abs(weight).max() / 8
    assert np.mean(np.abs(found - expected) > 1e-6) < 0.002  # ties in the last bit
    assert np.abs(found - expected).max() < step


def test_rows_that_blocks_do_not_fill_become_f16(one_thread):
    import torch

    from floe.tailoring.on_torch.rounding import round_weight

    weight = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_weight(weight, "Q4_0"), weight.half().float())


def test_what_cannot_be_judged_is_refused(quality, model, shape, ids):
    from floe.tailoring.on_torch.quality import TorchQuality

    with pytest.raises(BadPlan, match="cuts by 'wanda-sp', which was not measured"):
        quality.perplexity(smaller(shape, "wanda-sp"))
    with pytest.raises(ValueError, match="windows of one length"):
        TorchQuality(
            model=model, shape=shape, statistics=quality._statistics, windows=[[1, 2], [1, 2, 3]]
        )


def test_windows_are_spread_and_do_not_overlap():
    found = windows(list(range(100)), n_windows=3, width=10)
    assert [w[0] for w in found] == [0, 30, 60]
    assert windows(list(range(100)), n_windows=2, width=10, first=-1)[1][:2] == [-1, 45]
    with pytest.raises(BadRequest, match="has 5 tokens, 1 windows of 10 need 10"):
        windows(list(range(5)), n_windows=1, width=10)


def test_wikitexts_marks_are_undone():
    raw = ' the well @-@ known " lobster red " , 1 @,@ 000 ( 24 in ) long \n'
    assert detokenized(raw).strip() == 'the well-known "lobster red", 1,000 (24 in) long'
    plain = "He said ( twice ) : no .\n"
    assert detokenized(plain) == plain


def test_the_sample_comes_with_the_package(tmp_path):
    assert len(sample_text()) > 80_000
    assert " @-@ " not in sample_text()
    with pytest.raises(NotFound, match="no calibration text at"):
        read_text(tmp_path / "none.txt")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadRequest, match="is not UTF-8 text"):
        read_text(tmp_path / "bad.txt")
