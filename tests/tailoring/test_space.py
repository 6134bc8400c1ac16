import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadPlan
from floe.tailoring.base import Budgets
from floe.tailoring.genes import Choices
from floe.tailoring.memory import Room, memory_of, parameters
from floe.tailoring.modelled_cost import ModelledCost
from floe.tailoring.plan import LayerPlan, ModelShape, Plan
from floe.tailoring.rules import Rules
from floe.tailoring.shapes import check_plan, whole_plan
from floe.tailoring.space import Space

SHAPE = ModelShape(
    base_digest="d" * 64, n_layers=5, width=64, n_kv_heads=2, q_per_kv=2, head_width=16,
    n_ffn=128, n_vocab=500,
)  # fmt: skip
COST = ModelledCost(shape=SHAPE, bytes_per_ms=1e4, mj_per_ms=3.0, context_tokens=256)
WHOLE = COST.cost(whole_plan(SHAPE))


def space(budgets=None, rules=None, choices=None, shape=SHAPE, cost=COST):
    choices = choices or Choices(ffn_step=32)
    return Space(
        shape=shape, cost=cost, budgets=budgets or Budgets(), rules=rules, choices=choices,
        room=Room(context_tokens=256),
    )  # fmt: skip


def levels_of(one):
    return st.tuples(*(st.integers(0, g.top) for g in one.genes))


TIGHT = space(
    Budgets(decode_ms=0.75 * WHOLE.decode_ms, memory_bytes=round(0.8 * WHOLE.memory_bytes)),
    choices=Choices(
        ffn_step=32, importances=("taylor", "flap"), quants={"ffn": ("Q4_0", "Q8_0", "F16")}
    ),
)


@given(levels=levels_of(TIGHT))
def test_repaired_plans_keep_all_budgets_and_are_legal(levels):
    plan = TIGHT.plan(TIGHT.repair_levels(levels), made_by="test")
    cost = COST.cost(plan)
    assert cost.decode_ms <= 0.75 * WHOLE.decode_ms
    assert cost.memory_bytes <= round(0.8 * WHOLE.memory_bytes)
    check_plan(plan, SHAPE, rules=Rules())


@given(levels=levels_of(TIGHT))
def test_a_repaired_plan_is_repaired_once(levels):
    once = TIGHT.repair_levels(levels)
    assert TIGHT.repair_levels(once) == once
    assert TIGHT.repair_levels(levels) == once


@given(levels=levels_of(TIGHT))
def test_no_half_that_stays_could_be_larger(levels):
    found = TIGHT.repair_levels(levels)
    for i, gene in enumerate(TIGHT.genes):
        if gene.is_width and 0 < found[i] < gene.top:
            assert not TIGHT.fits((*found[:i], found[i] + 1, *found[i + 1 :]))


@given(levels=levels_of(TIGHT))
def test_without_filling_nothing_grows(levels):
    found = TIGHT.repair_levels(levels, fill=False)
    assert all(a <= b for a, b in zip(found, levels, strict=True))


@given(levels=levels_of(TIGHT))
def test_what_is_dropped_stays_dropped(levels):
    found = TIGHT.repair_levels(levels)
    assert all(b == 0 for g, a, b in zip(TIGHT.genes, levels, found, strict=True)
               if g.is_width and a == 0)  # fmt: skip


@given(levels=levels_of(TIGHT))
def test_levels_and_plans_are_each_others_inverse(levels):
    assert TIGHT.levels(TIGHT.plan(levels)) == levels


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_random_plans_keep_the_budgets_and_depend_on_the_seed_alone(seed):
    one = TIGHT.random(np.random.default_rng(seed))
    assert TIGHT.fits(one)
    assert one == TIGHT.random(np.random.default_rng(seed))


def test_random_plans_differ():
    rng = np.random.default_rng(0)
    assert len({TIGHT.random(rng) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("field", "share"),
    [("decode_ms", 0.8), ("prefill_ms", 0.8), ("energy_mj", 0.8), ("memory_bytes", 0.8),
     ("parameters", 0.8), ("kv_bytes", 0.8)],
)  # fmt: skip
def test_d16_each_budget_holds_alone(field, share):
    room = Room(context_tokens=256)
    whole = whole_plan(SHAPE)
    of = {
        "parameters": lambda p: parameters(SHAPE, p),
        "kv_bytes": lambda p: memory_of(SHAPE, p, room).kv_bytes,
    }.get(field, lambda p: getattr(COST.cost(p), field))
    limit = of(whole) * share
    limit = int(limit) if field in ("memory_bytes", "parameters", "kv_bytes") else limit
    found = space(Budgets(**{field: limit}))
    plan = found.plan(found.uniform())
    assert 0.5 * limit < of(plan) <= limit
    assert [x.name for x in found.limits(plan)] == [field]


def test_d16_budgets_hold_together():
    budgets = Budgets(
        decode_ms=0.9 * WHOLE.decode_ms, kv_bytes=120_000, parameters=120_000, memory_bytes=900_000
    )
    found = space(budgets)
    limits = found.limits(found.plan(found.uniform()))
    assert len(limits) == 4
    assert all(x.holds for x in limits)


def test_d16_the_cache_counts_in_memory_at_the_asked_context():
    long = ModelledCost(shape=SHAPE, context_tokens=4096)
    limit = round(0.5 * long.cost(whole_plan(SHAPE)).memory_bytes)
    found = space(Budgets(memory_bytes=limit), cost=long)
    plan = found.plan(found.uniform())
    assert long.cost(plan).memory_bytes <= limit
    assert sum(p.n_kv_heads for p in plan.layers) < SHAPE.n_layers * SHAPE.n_kv_heads


def test_impossible_budgets_name_the_tightest():
    with pytest.raises(BadPlan, match=r"budget decode_ms = 0\.01: the smallest allowed model"):
        space(Budgets(decode_ms=0.01, memory_bytes=WHOLE.memory_bytes // 2))
    with pytest.raises(BadPlan, match="budget memory_bytes = 1000"):
        space(Budgets(decode_ms=WHOLE.decode_ms, memory_bytes=1000))


def test_an_energy_budget_needs_energy():
    with pytest.raises(BadPlan, match="no energy; profile with a meter"):
        space(Budgets(energy_mj=1.0), cost=ModelledCost(shape=SHAPE))


def test_fewer_bits_are_taken_only_where_the_narrowest_model_needs_them():
    choices = Choices(ffn_step=32, quants={"embedding": ("Q4_0", "F16")})
    table = SHAPE.n_vocab * SHAPE.width
    limit = round(table * 1.2) + 12_000 * 2 * 5
    found = space(
        Budgets(memory_bytes=limit), choices=choices, rules=Rules(guard_first=0, guard_last=0)
    )
    plan = found.plan(found.uniform())
    assert plan.quants == {"embedding": "F16"} or found.keeps_budgets(plan)
    small = space(Budgets(memory_bytes=round(table * 1.2)), choices=choices,
                  rules=Rules(guard_first=0, guard_last=0))  # fmt: skip
    assert small.plan(small.uniform()).quants == {"embedding": "Q4_0"}


def test_d14_only_what_is_included_is_cut():
    found = space(
        Budgets(decode_ms=0.93 * WHOLE.decode_ms), rules=Rules(include=("layers.1-2.ffn",))
    )
    plan = found.plan(found.uniform())
    whole = whole_plan(SHAPE)
    cut = [n for n, (a, b) in enumerate(zip(plan.layers, whole.layers, strict=True)) if a != b]
    assert set(cut) <= {1, 2}
    assert cut
    assert all(p.n_kv_heads == 2 and p.q_per_kv == 2 for p in plan.layers)


def test_d14_what_is_excluded_stays_whole():
    found = space(
        Budgets(decode_ms=0.8 * WHOLE.decode_ms), rules=Rules(exclude=("layers.*.attention",))
    )
    assert all(g.kind != "attention" for g in found.genes)


def test_guarded_layers_have_no_genes():
    assert {g.layer for g in space().genes} == {1, 2, 3}


def test_d01_heads_leave_as_whole_groups_with_equally_many_query_heads():
    options = next(g for g in space().genes if g.kind == "attention").options
    assert options[0] == (0, 0)
    assert set(options) == {(0, 0), *itertools.product((1, 2), (1, 2))}


def test_something_always_stays():
    found = space(rules=Rules(guard_first=0, guard_last=0))
    check_plan(found.plan(found.lowest), SHAPE)


def test_a_plan_between_levels_becomes_smaller():
    found = space(choices=Choices(ffn_step=64))
    layers = (LayerPlan(n_kv_heads=2, q_per_kv=2, n_ffn=96),) * 5
    plan = Plan(base_digest=SHAPE.base_digest, layers=layers)
    assert [p.n_ffn for p in found.plan(found.levels(plan)).layers] == [128, 64, 64, 64, 128]


def test_wrong_plans_and_choices_are_refused():
    found = space()
    with pytest.raises(BadPlan, match="made for another model"):
        found.levels(Plan(base_digest="e" * 64, layers=whole_plan(SHAPE).layers))
    with pytest.raises(ValueError, match="levels outside the space"):
        found.plan([0] * (len(found.genes) - 1))
    with pytest.raises(BadPlan, match="has 'nothing' as importance"):
        TIGHT.levels(Plan(base_digest=SHAPE.base_digest, layers=whole_plan(SHAPE).layers,
                          quants={"ffn": "F16"}, importance="nothing"))  # fmt: skip
    for choices, text in (
        (Choices(ffn_step=33), "ffn_step 33 is no multiple of 32"),
        (Choices(ffn_step=32, importances=()), "no importance is named"),
        (Choices(ffn_step=32, quants={"ffn": ("Q3_K",)}), "no quantization 'Q3_K' of 'ffn'"),
        (Choices(ffn_step=32, quants={"ffn": ()}), "no quantization types to choose from for ffn"),
    ):
        with pytest.raises(BadPlan, match=text):
            space(choices=choices)
    with pytest.raises(BadPlan, match="leave nothing to choose"):
        space(rules=Rules(exclude=("layers.*.*",)))
