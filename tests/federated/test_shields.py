"""Clipping in product space, noise of the asked size, and what must not be released."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadConfig, BadRound, BadUpdate
from floe.federated.base import Aggregate
from floe.federated.products import dense, state_difference, state_norm
from floe.federated.shields.clip import Clip, clip_change
from floe.federated.shields.combine import check_shields
from floe.federated.shields.gaussian import ClientDp
from floe.federated.shields.noise_central import NoiseCentral
from floe.federated.shields.noise_distributed import NoiseDistributed
from floe.federated.shields.quantize import Quantize
from floe.federated.shields.release import over_shared_a, releasable
from floe.federated.start import fresh_state
from floe.federated.update import AdapterState, Factors, Update

SHAPES = {"q": (12, 9), "v": (5, 9)}
TERMS = ClientDp(clip_norm=1.0, noise_multiplier=2.0, min_cohort=4, rank=4, a_seed=11, secret=False)


def free_state(seed: int, *, rank: int = 3, scale: float = 1.0) -> AdapterState:
    rng = np.random.default_rng(seed)
    return AdapterState(
        base_digest="base",
        modules={
            name: Factors(
                a_RI=rng.normal(0, 1, (rank, n_in)).astype(np.float32),
                b_OR=(scale * rng.normal(0, 1, (n_out, rank))).astype(np.float32),
            )
            for name, (n_out, n_in) in SHAPES.items()
        },
    )


def frozen_state(seed: int, *, rank: int = 4, scale: float = 1.0) -> AdapterState:
    state = fresh_state("base", SHAPES, rank=rank, seed=11)
    rng = np.random.default_rng(seed)
    modules = {
        name: Factors(a_RI=f.a_RI, b_OR=(scale * rng.normal(0, 1, f.b_OR.shape)).astype(np.float32))
        for name, f in state.modules.items()
    }
    return AdapterState(base_digest="base", modules=modules)


def update_of(state: AdapterState, client: str = "one") -> Update:
    return Update(
        client=client, round_number=1, state=state, n_examples=40, metrics={"train_loss_last": 1.5}
    )


def dense_of(state: AdapterState) -> np.ndarray:
    return np.concatenate([dense(f).astype(np.float64).ravel() for f in state.modules.values()])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999), ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    clip=st.floats(0.01, 100.0), begin=st.booleans(),
)  # fmt: skip
def test_a_change_is_brought_into_the_ball(
    seed: int, ranks: tuple[int, int], clip: float, begin: bool
) -> None:
    start = free_state(seed, rank=ranks[0]) if begin else None
    state = free_state(seed + 1000, rank=ranks[1])
    done = clip_change(start, state, clip_norm=clip)
    before = dense_of(start) if start is not None else np.zeros_like(dense_of(state))
    moved = dense_of(done.state) - before
    assert np.linalg.norm(moved) <= clip * (1 + 1e-4) + 1e-5
    norm = np.linalg.norm(dense_of(state) - before)
    assert done.norm == pytest.approx(norm, rel=1e-4)
    if norm <= clip * 0.999:
        assert done.state is state
    if not begin and norm > clip:
        wanted = dense_of(state) * clip / norm
        np.testing.assert_allclose(dense_of(done.state), wanted, atol=1e-5 * clip + 1e-6)


@given(seed=st.integers(0, 999), clip=st.floats(0.1, 5.0))
def test_over_one_frozen_a_clipping_is_exact(seed: int, clip: float) -> None:
    start, state = frozen_state(seed), frozen_state(seed + 1000, scale=2.0)
    done = clip_change(start, state, clip_norm=clip)
    before, after = dense_of(start), dense_of(state)
    share = min(1.0, clip / np.linalg.norm(after - before))
    assert done.scale == pytest.approx(share, rel=1e-4)
    assert done.cut_error == 0.0
    np.testing.assert_allclose(dense_of(done.state), before + share * (after - before), atol=2e-5)


def test_the_cut_back_to_the_rank_says_its_error() -> None:
    start, state = free_state(1), free_state(2)
    done = clip_change(start, state, clip_norm=3.0)
    assert done.state.rank == 3
    wanted = dense_of(start) + done.scale * (dense_of(state) - dense_of(start))
    error = np.linalg.norm(dense_of(done.state) - wanted) / np.linalg.norm(wanted)
    assert done.cut_error == pytest.approx(error, rel=1e-3)
    assert 0 < done.cut_error < 1


def test_the_norm_does_not_depend_on_how_factors_share_their_scale() -> None:
    state = free_state(3)
    turned = AdapterState(
        base_digest="base",
        modules={
            n: Factors(a_RI=f.a_RI * np.float32(50), b_OR=f.b_OR / np.float32(50))
            for n, f in state.modules.items()
        },
    )
    assert clip_change(None, turned, clip_norm=1.0).norm == pytest.approx(
        clip_change(None, state, clip_norm=1.0).norm, rel=1e-5
    )


def test_clip_notes_what_it_did() -> None:
    shield = Clip(clip_norm=1.0)
    update = update_of(free_state(4))
    out = shield.on_device(None, update, seed=0)
    assert out.metrics["clipped"] == 1.0
    assert out.metrics["norm_before"] == pytest.approx(state_norm(update.state))
    assert out.metrics["clip_scale"] == pytest.approx(1 / out.metrics["norm_before"])
    assert out.metrics["train_loss_last"] == 1.5
    small = Clip(clip_norm=1e6).on_device(None, update, seed=0)
    assert small.metrics["clipped"] == 0.0
    total = Aggregate(state=update.state, n_updates=1, n_examples=1)
    assert shield.on_server(total, ["one"], seed=0) is total


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_c11_norms_and_noise_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(BadConfig, match=r"clip norm is .*finite and above 0"):
        Clip(clip_norm=bad)
    with pytest.raises(BadConfig, match=r"clip norm is"):
        replace(TERMS, clip_norm=bad)
    with pytest.raises(BadConfig, match=r"noise multiplier is"):
        replace(TERMS, noise_multiplier=bad)
    with pytest.raises(BadConfig, match=r"min_cohort is 0; 1 is the least"):
        replace(TERMS, min_cohort=0)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float16, np.complex64, bool])
@pytest.mark.parametrize("side", ["a_RI", "b_OR"])
def test_c11_only_listed_float_arrays_are_released(kind: type, side: str) -> None:
    state = frozen_state(5)
    broken = replace(state.modules["v"], **{side: getattr(state.modules["v"], side).astype(kind)})
    update = update_of(replace(state, modules={**state.modules, "v": broken}))
    for shield in (
        Clip(clip_norm=1.0), NoiseCentral(terms=TERMS), NoiseDistributed(terms=TERMS), Quantize()
    ):  # fmt: skip
        with pytest.raises(BadUpdate, match=r"v . is .*only float32 and float64") as refused:
            shield.on_device(None, update, seed=0)
        assert refused.value.reason == "not_float"


def test_c11_what_is_no_number_or_no_matrix_is_refused() -> None:
    state = frozen_state(6)

    def with_b(b_OR: np.ndarray) -> AdapterState:
        changed = replace(state.modules["q"], b_OR=b_OR)
        return replace(state, modules={**state.modules, "q": changed})

    bad = state.modules["q"].b_OR.copy()
    bad[0, 0] = np.nan
    with pytest.raises(BadUpdate, match=r"q B holds a value that is not finite"):
        releasable(with_b(bad))
    bad[0, 0] = np.inf
    with pytest.raises(BadUpdate, match=r"not finite"):
        releasable(with_b(bad))
    with pytest.raises(BadUpdate, match=r"shape \(0, 4\)"):
        releasable(with_b(np.zeros((0, 4), np.float32)))
    with pytest.raises(BadUpdate, match=r"different ranks"):
        releasable(with_b(np.zeros((12, 3), np.float32)))
    with pytest.raises(BadUpdate, match=r"no modules"):
        releasable(AdapterState(base_digest="base", modules={}))


def test_another_a_is_refused_and_lower_ranks_nest() -> None:
    with pytest.raises(BadUpdate, match=r"not the federation's shared one; train with mode \"free"):
        over_shared_a(free_state(7), rank=4, a_seed=11)
    low = frozen_state(8, rank=2)
    high = over_shared_a(low, rank=4, a_seed=11)
    assert high.rank == 4
    np.testing.assert_allclose(dense_of(high), dense_of(low), atol=1e-5)
    assert all(
        np.linalg.norm(f.b_OR) == pytest.approx(np.linalg.norm(dense(f)), rel=1e-5)
        for f in high.modules.values()
    )
    with pytest.raises(BadUpdate, match=r"shared one"):
        over_shared_a(frozen_state(8), rank=2, a_seed=11)  # would be cut


def test_devices_release_a_bounded_change_that_weighs_as_one() -> None:
    start, state = frozen_state(9), frozen_state(10, rank=2, scale=5.0)
    shield = NoiseCentral(terms=TERMS)
    out = shield.on_device(start, update_of(state), seed=0)
    assert out.n_examples == 1
    assert out.metrics == {}
    assert out.state.rank == 4
    assert state_norm(state_difference(out.state, start)) <= 1.0
    again = shield.on_receipt(start, out)
    np.testing.assert_array_equal(dense_of(again.state), dense_of(out.state))
    liar = shield.on_receipt(start, update_of(frozen_state(10, scale=99.0)))
    assert state_norm(state_difference(liar.state, start)) <= 1.0


def noise_of(noised: AdapterState, plain: AdapterState) -> np.ndarray:
    return np.concatenate(
        [(f.b_OR - plain.modules[n].b_OR).ravel() for n, f in noised.modules.items()]
    ).astype(np.float64)


def check_deviation(drawn: np.ndarray, wanted: float) -> None:
    """Five standard errors on deviation and mean, and a normal's fourth moment."""
    n = drawn.size
    assert abs(drawn.std() / wanted - 1) < 5 / math.sqrt(2 * n)
    assert abs(drawn.mean()) < 5 * wanted / math.sqrt(n)
    kurtosis = np.mean((drawn / wanted) ** 4)
    assert abs(kurtosis - 3) < 5 * math.sqrt(96 / n)


def test_central_noise_has_the_asked_deviation_for_the_least_cohort() -> None:
    state = over_shared_a(frozen_state(11), rank=4, a_seed=11)
    total = Aggregate(state=state, n_updates=6, n_examples=6)
    shield = NoiseCentral(terms=TERMS)
    drawn = [
        noise_of(shield.on_server(total, list("abcdef"), seed=s).state, state) for s in range(300)
    ]
    check_deviation(np.concatenate(drawn), 2.0 * 1.0 / 4)


@pytest.mark.parametrize("returned", [4, 6])
def test_c10_shares_add_up_to_the_asked_noise_for_the_least_cohort(returned: int) -> None:
    shield = NoiseDistributed(terms=TERMS)
    inside = NoiseCentral(terms=TERMS).on_device(None, update_of(frozen_state(12)), seed=0)
    sums = []
    for trial in range(150):
        shares = [
            noise_of(
                shield.on_device(None, inside, seed=trial * 100 + i).state, inside.state
            )
            for i in range(returned)
        ]  # fmt: skip
        sums.append(np.sum(shares, axis=0))
    asked = TERMS.noise_multiplier * TERMS.clip_norm
    check_deviation(np.concatenate(sums), asked * math.sqrt(returned / 4))


@pytest.mark.parametrize("shield", [NoiseCentral(terms=TERMS), NoiseDistributed(terms=TERMS)])
def test_c10_a_smaller_cohort_makes_the_round_void(
    shield: NoiseCentral | NoiseDistributed,
) -> None:
    total = Aggregate(state=frozen_state(13), n_updates=3, n_examples=3)
    for names in (list("abc"), list("aaab")):  # the second: one device four times is one
        with pytest.raises(BadRound, match=r"at least 4: the round is void"):
            shield.on_server(total, names, seed=0)
    shield.on_server(total, list("abcd"), seed=0)


def test_noise_is_secret_by_default() -> None:
    terms = replace(TERMS, secret=True)
    update = update_of(frozen_state(14))
    one, two = (NoiseDistributed(terms=terms).on_device(None, update, seed=1) for _ in range(2))
    assert not np.array_equal(dense_of(one.state), dense_of(two.state))
    same = [NoiseDistributed(terms=TERMS).on_device(None, update, seed=1) for _ in range(2)]
    assert np.array_equal(dense_of(same[0].state), dense_of(same[1].state))


def test_a_total_over_other_factors_is_brought_back_to_the_shared_a() -> None:
    """Aggregators may answer in any basis; the product is what counts."""
    state = frozen_state(15)
    turned = AdapterState(
        base_digest="base",
        modules={n: Factors(a_RI=f.a_RI * 2, b_OR=f.b_OR / 2) for n, f in state.modules.items()},
    )
    total = Aggregate(state=turned, n_updates=4, n_examples=4)
    quiet = NoiseCentral(terms=replace(TERMS, noise_multiplier=1e-9))
    out = quiet.on_server(total, list("abcd"), seed=0)
    np.testing.assert_allclose(dense_of(out.state), dense_of(state), atol=1e-5)
    np.testing.assert_array_equal(
        out.state.modules["q"].a_RI, fresh_state("", SHAPES, rank=4, seed=11).modules["q"].a_RI
    )


def test_a_round_is_accounted_as_it_is_drawn() -> None:
    some = TERMS.mechanism(selected=5, registered=50)
    assert (some.unit, some.sampling.kind, some.sampling.rate) == ("client", "fixed", 0.1)
    assert TERMS.mechanism(selected=5, registered=5).sampling.kind == "all"
    with pytest.raises(BadConfig, match=r"3 of 50 devices are asked, and at least 4"):
        TERMS.mechanism(selected=3, registered=50)
    with pytest.raises(BadConfig, match=r"6 of 5 devices"):
        TERMS.mechanism(selected=6, registered=5)


def test_rounding_loses_nothing_over_time() -> None:
    """With feedback the sum of what was sent follows the sum of what was meant."""
    shield, plain = Quantize(), Quantize(feedback=False)
    meant = frozen_state(16)
    sent = {"with": [], "without": []}
    for _ in range(12):
        sent["with"].append(dense_of(shield.on_device(None, update_of(meant), seed=0).state))
        sent["without"].append(dense_of(plain.on_device(None, update_of(meant), seed=0).state))
    gap = {k: np.linalg.norm(np.mean(v, axis=0) - dense_of(meant)) for k, v in sent.items()}
    assert gap["with"] < 0.3 * gap["without"]
    assert 0 < gap["without"] < 0.02 * np.linalg.norm(dense_of(meant))
    total = Aggregate(state=meant, n_updates=1, n_examples=1)
    assert plain.on_server(total, ["one"], seed=0) is total


def test_a_rounded_update_is_rounded_to_itself() -> None:
    from floe.federated import wire

    once = Quantize(feedback=False).on_device(None, update_of(frozen_state(17)), seed=0)
    twice = wire.decode(wire.encode(once, bits=8))
    np.testing.assert_allclose(dense_of(twice.state), dense_of(once.state), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["noise-central"], {"mode": "both"}, 'needs mode "freeze-a", not "both"'),
        ([], {"mode": "both", "secure_sum": True}, "secure aggregation needs mode"),
        (["noise-central"], {"mode": "freeze-a", "aggregation": "robust-median"}, "plain mean"),
        (["noise-distributed"], {"mode": "freeze-a", "weights": "examples"}, "equal weights"),
        (["noise-central", "noise-distributed"], {"mode": "freeze-a"}, "two ways to one promise"),
        (["noise-central"], {"mode": "freeze-a", "grouped_by_updates": True}, "its cluster"),
        (["quantize"], {"mode": "freeze-a", "secure_sum": True}, "leave quantize out"),
        (["quantize", "noise-distributed"], {"mode": "freeze-a"}, "put it last"),
    ],
)
def test_combinations_that_would_not_protect_are_refused(
    names: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(BadConfig, match=message):
        check_shields(names, **options)  # type: ignore[arg-type]


def test_combinations_that_hold_are_taken() -> None:
    check_shields(
        ["clip", "quantize"],
        mode="both",
        aggregation="robust-median",
        weights="examples",
        grouped_by_updates=True,
    )
    check_shields(["noise-distributed"], mode="freeze-a", secure_sum=True)
    check_shields(["noise-distributed", "quantize"], mode="freeze-a")
