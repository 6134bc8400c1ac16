"""The router with its learner: exactly the gate at first, then what was learned and costs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floe.core.adapter import AdapterManifest, Centroid
from floe.core.errors import BadRequest, NotFound
from floe.core.outcome import Outcome
from floe.core.request import Request
from floe.core.route import Route, Share
from floe.core.sections import RoutingConfig
from floe.routing.learner import Learner
from floe.routing.reward import utility
from floe.routing.router import Router

ENCODER = "e" * 64
CONFIG = RoutingConfig(
    temperature=0.1,
    threshold=0.3,
    min_share=0.1,
    exploration=0.02,
    agreement=True,
    miss_cost_per_s=1.0,
)


class Numbers:
    """A text of numbers is its own vector."""

    digest = ENCODER

    def __call__(self, text: str) -> NDArray[np.float32]:
        vector = np.array([float(x) for x in text.split()] or [0.0] * 4, dtype=np.float32)
        length = np.linalg.norm(vector)
        return vector / length if length else vector


def adapter(name: str, *vector: float) -> AdapterManifest:
    return AdapterManifest(
        name=name, digest=f"digest-{name}", base_model="tiny", architecture="llama", rank=8,
        modules=4, file_bytes=100, created_at="",
        centroid=Centroid(encoder_digest=ENCODER, vector=vector),
    )  # fmt: skip


MATHS, CODE = adapter("maths", 1, 0, 0, 0), adapter("code", 0, 1, 0, 0)
PROMPT = "0.8 0.5 0.1 0"


def learner(config: RoutingConfig = CONFIG, path: Path | None = None) -> Learner:
    return Learner(config=config, encoder_digest=ENCODER, embedding_width=4, path=path)


def router(
    *adapters: AdapterManifest, config: RoutingConfig = CONFIG, learns: bool = True,
    **kwargs: object,
) -> Router:  # fmt: skip
    return Router(
        embedding=Numbers(),
        adapters=lambda: adapters or (MATHS, CODE),
        base_names={"tiny"},
        config=config,
        learner=learner(config) if learns else None,
        **kwargs,  # type: ignore[arg-type]
    )


def ask(text: str = PROMPT, *, model: str = "auto", tenant: str = "default") -> Request:
    return Request(id="r", model=model, prompt=text, tenant=tenant)


def outcome(route: Route, agreement: float | None = -1.0, **changed: object) -> Outcome:
    known = Outcome(
        request_id="r", tenant="default", route=route, topic=PROMPT, wait_ms=0.0,
        first_token_ms=0.0, total_ms=1.0, completion_tokens=32, agreement=agreement,
        agreement_tokens=32,
    )  # fmt: skip
    return replace(known, **changed)  # type: ignore[arg-type]


def only(name: str) -> Route:
    share = Share(name=name, digest=f"digest-{name}", weight=1.0)
    return Route(shares=(share,), how="explicit")


@settings(max_examples=80, deadline=None)
@given(
    numbers=st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4),
    seed=st.integers(0, 2**31),
    n=st.integers(1, 7),
    cost_ms=st.sampled_from([0.0, 3.0, 1e4]),
    resident=st.booleans(),
)
def test_f16_with_nothing_learned_and_equal_costs_the_route_is_the_gates(
    numbers: list[float], seed: int, n: int, cost_ms: float, resident: bool
) -> None:
    rng = np.random.default_rng(seed)
    adapters = [adapter(f"a{k}", *rng.standard_normal(4)) for k in range(n)]
    request = ask(" ".join(map(repr, numbers)))
    alone = router(*adapters, learns=False).choose(request)
    with_learner = router(
        *adapters, resident=lambda _digest: resident, load_ms=lambda _manifest: cost_ms
    )
    assert with_learner.choose(request) == alone


def test_f16_the_first_fifty_requests_lose_almost_nothing_against_the_gate() -> None:
    """Whatever is learned meanwhile from adapters that are all as good as the gate thinks."""
    gate, one = router(learns=False), router()
    rng = np.random.default_rng(2)

    def worth(route: Route, text: str) -> float:
        cos = dict(zip(("maths", "code"), Numbers()(text)[:2].tolist(), strict=True))
        return sum(s.weight * 2.0 * (cos[s.name] - 0.3) for s in route.shares)

    lost = []
    for n in range(50):
        text = " ".join(map(str, rng.standard_normal(4)))
        route = one.choose(ask(text))
        found = worth(route, text)
        lost.append(worth(gate.choose(ask(text)), text) - found)
        one.learn(outcome(route, -2.0 + found, topic=text, request_id=str(n)))
    assert sum(lost) / 50 < 0.02  # nats a token; a wrong adapter loses a tenth to two
    assert max(lost) < 0.3


def test_an_adapter_that_disappoints_gives_way_and_the_reason_says_why() -> None:
    one = router()
    assert one.choose(ask()).shares[0].name == "maths"
    for _ in range(30):
        assert one.learn(outcome(only("maths"), -3.0))
        assert one.learn(outcome(only("code"), -1.0))
    route = one.choose(ask())
    assert [s.name for s in route.shares] == ["code"]
    assert route.reason.startswith(
        "nearest adapter maths, cosine 0.84; code instead, in nats a token: code learned +"
    )
    assert ", maths learned -" in route.reason
    assert one.counters()["router_moved_total"] == 1
    assert one.counters()["router_learned_total"] == 60


def test_the_llms_judgement_counts_only_when_asked_for() -> None:
    quiet = router(config=replace(CONFIG, agreement=False))
    before = quiet.choose(ask())
    for n in range(40):
        assert not quiet.learn(outcome(only("maths"), -6.0, request_id=f"m{n}"))
    assert quiet.choose(ask()) == before
    assert quiet.feedback("m39", thumbs=-1)


def test_one_answer_moves_almost_nothing_and_many_do() -> None:
    """An LLM finds single answers likely or not for reasons of their own."""
    one, embedding = learner(), Numbers()(PROMPT)
    digests, cos, free = ("digest-maths",), np.array([0.8]), np.zeros(1)
    for n in range(40):
        one.learn(outcome(only("maths"), -4.0, request_id=f"m{n}"), embedding, {}, threshold=0.3)
        moved = one.moved(digests, embedding, cos, free, threshold=0.3)
        if n == 0:
            assert abs(float(moved.learned[0])) < 0.06  # nats: 0.03 of cosine
        one.learn(
            outcome(Route(how="base"), -1.0, request_id=f"b{n}"), embedding, {}, threshold=0.3
        )
    moved = one.moved(digests, embedding, cos, free, threshold=0.3)
    assert float(moved.learned[0]) < -0.5


def test_what_is_in_memory_is_preferred_by_as_much_as_a_load_costs() -> None:
    here = {"digest-code"}

    def with_load(ms: float) -> Route:
        return router(
            resident=here.__contains__, load_ms=lambda _manifest: ms
        ).choose(ask())  # fmt: skip

    assert with_load(20.0).shares[0].name == "maths"
    moved = with_load(2_000.0)
    assert [s.name for s in moved.shares] == ["code"]
    assert "code instead" in moved.reason
    assert "maths learned +0.00 load -2.00" in moved.reason
    here.clear()
    assert with_load(2_000.0).shares[0].name == "maths"  # in an empty memory


def test_residency_never_enters_what_is_learned() -> None:
    found = []
    for resident in (True, False):
        one = router(resident=lambda _digest, r=resident: r, load_ms=lambda _m: 900.0)
        for n in range(20):
            one.choose(ask())
            waited = 0.0 if resident else 900.0
            told = outcome(only("maths"), -2.0, wait_ms=waited, first_token_ms=waited + 5)
            one.learn(replace(told, request_id=str(n)))
        found.append(one.outlook())
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].utilities == found[1].utilities).all()
    assert found[0].samples == found[1].samples == (20.0, 0.0)


def test_a_mix_credits_each_adapter_by_its_share() -> None:
    one = learner()
    share = [Share(name="m", digest="m", weight=0.75), Share(name="c", digest="c", weight=0.25)]
    vector = Numbers()(PROMPT)
    assert one.learn(outcome(Route(shares=tuple(share), how="routed")), vector, {}, threshold=0.3)
    assert (one.bandit.count("m"), one.bandit.count("c")) == (0.75, 0.25)
    by_hand = Route(shares=tuple(share), how="explicit")
    assert not one.learn(outcome(by_hand), vector, {}, threshold=0.3)
    assert one.bandit.observations == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_f03_an_outcome_without_a_finite_agreement_teaches_nothing(bad: float | None) -> None:
    one = router()
    assert not one.learn(outcome(only("maths"), bad))
    assert not one.learn(outcome(only("maths"), first_token_ms=math.nan))
    assert one.counters()["router_without_reward_total"] == 2
    assert one.choose(ask()) == router(learns=False).choose(ask())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"thumbs": 0}, "thumbs must be 1 or -1"),
        ({"thumbs": 5}, "thumbs must be 1 or -1"),
        ({"metric": math.nan}, "metric must be a number between 0 and 1"),
        ({"metric": 1.5}, "metric must be a number between 0 and 1"),
        ({}, "say something: thumbs, metric, or both"),
    ],
)
def test_f03_feedback_out_of_range_is_refused(said: dict[str, float], why: str) -> None:
    one = router()
    one.learn(outcome(only("maths")))
    with pytest.raises(BadRequest, match=why):
        one.feedback("r", **said)  # type: ignore[arg-type]
    assert one.feedback("r", thumbs=1)  # still remembered


def test_thumbs_alone_change_the_route_and_count_once() -> None:
    one = router()
    for n in range(60):
        name, thumbs = (("maths", -1), ("code", 1))[n % 2]
        one.learn(outcome(only(name), None, request_id=str(n)))
        assert one.feedback(str(n), thumbs=thumbs)
        assert not one.feedback(str(n), thumbs=thumbs)
    assert one.choose(ask()).shares[0].name == "code"
    assert not one.feedback("never", metric=0.5)
    assert not router(learns=False).feedback("r", thumbs=1)


def test_remembered_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floe.routing.learner.KEPT", 3)
    one = router()
    for n in range(5):
        one.learn(outcome(only("maths"), request_id=str(n)))
    assert [one.feedback(str(n), metric=1.0) for n in range(5)] == [False, False, True, True, True]


def test_f15_only_what_a_tenant_may_use_exists_for_it() -> None:
    may = {"school": {"maths"}, "shop": {"digest-code"}, "none": set(), "all": None}
    one = router(allowed=lambda tenant: may[tenant])
    names = {t: [s.name for s in one.choose(ask(tenant=t)).shares] for t in may}
    assert names == {"school": ["maths"], "shop": ["code"], "none": [], "all": ["maths"]}
    scores = dict(one.choose(ask(tenant="school")).scores)
    assert scores == {"maths": 1.0}
    with pytest.raises(NotFound, match=r"known: auto, tiny, maths$"):
        one.choose(ask(model="code", tenant="school"))


def test_an_adapter_that_is_tried_must_be_near_and_in_memory() -> None:
    here: set[str] = set()
    one = router(resident=here.__contains__)
    one.explore({"digest-code": 1, "digest-maths": 0})
    assert one.choose(ask()).shares[0].name == "maths"
    here.add("digest-code")
    assert "code" not in one.choose(ask("1 0 0 0")).reason  # not near
    tried = one.choose(ask())
    assert [(s.name, s.weight) for s in tried.shares] == [("code", 1.0)]
    assert tried.reason.endswith("; code is tried, little is known of it")
    assert one.choose(ask()).shares[0].name == "maths"
    assert one.counters()["router_tried_total"] == 1


def test_b31_the_realised_share_is_shown() -> None:
    one = router()
    for text in ("1 0 0 0", "0 0 1 0", "0 0 1 0", "0.7 0.7 0 0"):
        one.choose(ask(text))
    shown = one.counters()
    assert shown["router_asked_total"] == 4
    assert shown["router_to_adapter_share"] == 0.5
    assert shown["router_mixed_share"] == 0.25


def test_f17_a_new_version_begins_from_the_one_it_is_like() -> None:
    held = [MATHS, CODE]
    one = router()
    one = Router(embedding=Numbers(), adapters=lambda: held, base_names={"tiny"}, config=CONFIG,
                 learner=learner())  # fmt: skip
    one.choose(ask())
    for n in range(40):
        one.learn(outcome(only(("maths", "code")[n % 2]), (-3.0, -1.0)[n % 2]))
    assert one.choose(ask()).shares[0].name == "code"
    held[0] = replace(adapter("maths", 1, 0.1, 0, 0), digest="digest-maths-2")
    assert one.choose(ask()).shares[0].name == "code"  # what was learned of maths holds on
    one.forget("digest-code")
    outlook = one.outlook()
    assert outlook is not None
    assert outlook.digests == ("digest-maths-2", "digest-code")
    assert len(outlook.utilities) == 3


def test_b35_another_encoder_does_not_use_what_was_learned(tmp_path: Path) -> None:
    path = tmp_path / "state"
    one = learner(path=path)
    one.learn(outcome(only("maths")), Numbers()(PROMPT), {}, threshold=0.3)
    one.close()
    other = Learner(config=CONFIG, encoder_digest="f" * 64, embedding_width=4, path=path)
    assert "was learned with another encoder" in other.notice
    assert other.bandit.arms() == ()


def test_a_router_without_learner_or_embedding_learns_nothing() -> None:
    none = Router(embedding=None, adapters=lambda: (), base_names={"tiny"}, config=CONFIG)
    for one in (none, router(learns=False)):
        assert not one.learn(outcome(only("maths")))
        assert one.outlook() is None
        one.forget("digest-maths")
        one.close()
    assert not router().learn(outcome(only("maths"), topic="0 0 0 0"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (-1.0, 1.0)),
        ({"agreement": -50.0}, (-8.0, 1.0)),
        ({"agreement_tokens": 4}, (-1.0, 0.25)),
        ({"agreement_tokens": 0}, None),
        ({"first_token_ms": 1_500.0, "wait_ms": 1_000.0}, (-1.5, 1.0)),
        ({"first_token_ms": 9e9}, (-3.0, 1.0)),
        ({"first_token_ms": None}, (-1.0, 1.0)),
        ({"agreement": None}, None),
    ],
)
def test_utilities_are_nats_a_token(
    changed: dict[str, object], expected: tuple[float, float] | None
) -> None:
    assert utility(outcome(only("maths"), **changed), miss_cost_per_s=1.0) == expected


def test_no_reason_holds_the_users_words() -> None:
    class Words(Numbers):
        def __call__(self, text: str) -> NDArray[np.float32]:
            return super().__call__(PROMPT)

    one = Router(embedding=Words(), adapters=lambda: (MATHS, CODE), base_names={"tiny"},
                 config=CONFIG, learner=learner())  # fmt: skip
    for _ in range(20):
        one.learn(outcome(only("maths"), -4.0, topic="secret words"))
    assert "secret" not in one.choose(ask("secret words")).reason


def test_what_is_missed_again_and_again_is_loaded_in_the_end() -> None:
    here = {"digest-code"}
    one = router(resident=here.__contains__, load_ms=lambda _manifest: 2_000.0)
    taken = [one.choose(ask()).shares[0].name for _ in range(60)]
    assert taken[0] == "code"
    assert taken[-1] == "maths"
    assert taken == sorted(taken)  # no going back and forth
    rare = router(resident=here.__contains__, load_ms=lambda _manifest: 2_000.0)
    for n in range(200):  # the one in memory is needed far more often
        route = rare.choose(ask("0 1 0 0" if n % 20 else PROMPT))
        assert route.shares[0].name == "code"


def test_a_load_is_charged_in_full_where_nothing_is_saved_up() -> None:
    one = Learner(config=CONFIG, encoder_digest=ENCODER, embedding_width=4, saves_up=False)
    cos, costs = np.array([0.8, 0.5]), np.array([2.0, 0.0])
    for _ in range(200):
        moved = one.moved(("m", "c"), Numbers()(PROMPT), cos, costs, threshold=0.3)
    assert moved.cost.tolist() == [2.0, 0.0]
    assert moved.cos.tolist() == pytest.approx([-0.2, 0.5])
