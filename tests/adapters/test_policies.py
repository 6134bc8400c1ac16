"""Every policy keeps the conformance list; the clever ones agree with slow obvious twins."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.adapters.policies import BASELINES, POLICIES, Static, make_policy
from floe.adapters.policies.history import FEATURES
from floe.adapters.policies.learned import Learned
from floe.adapters.policies.predictor import Predictor, Prior
from floe.adapters.policies.value import cheapest
from floe.adapters.policy import Use
from floe.core.errors import BadConfig
from floe.testing import policy_conformance

MAKERS = {
    **{name: (lambda name=name: make_policy(name, seed=3)) for name in POLICIES},
    "static-best": lambda: Static(["a00", "a01", "a02"]),
    "unguarded": lambda: Learned(seed=3, is_guarded=False),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("check", policy_conformance.CHECKS, ids=lambda c: c.__name__)
def test_conformance_f01_f02_f04_f05_f19(name, check):
    check(MAKERS[name])


def test_an_unknown_policy_names_the_nearest():
    with pytest.raises(BadConfig, match=r'no cache policy named \'lfuda\'; did you mean "lfu-da"'):
        make_policy("lfuda")
    with pytest.raises(BadConfig, match="known: learned, lru, lfu"):
        make_policy("qqq")


@pytest.mark.parametrize("name", BASELINES)
def test_a_policy_without_state_refuses_one(name):
    with pytest.raises(BadConfig, match=f"the cache policy '{name}' keeps no state"):
        make_policy(name).restore({"policy": "learned"})


# --- slow twins: equal sizes, everything written down, decided by looking at all of it

REQUESTS = st.lists(st.integers(0, 9), min_size=1, max_size=120)
SLOTS = st.integers(1, 6)


def victims_of(policy, keys, slots):
    """The sequence of victims on equal adapters."""
    resident, gone = {}, []
    for t, k in enumerate(keys):
        use = Use(key=str(k), n_bytes=1, load_ms=1.0, at_s=float(t))
        policy.used(use, resident=use.key in resident)
        if use.key in resident:
            continue
        if len(resident) == slots:
            [victim] = policy.victims(1, resident, at_s=float(t))
            del resident[victim]
            policy.evicted(victim)
            gone.append(victim)
        resident[use.key] = 1
        policy.admitted(use)
    return gone


def twin(keys, slots, worst):
    """The sequence where `worst(past, resident)` names the victim; past includes the request."""
    resident, gone = [], []
    for t, k in enumerate(keys):
        if k not in resident:
            if len(resident) == slots:
                victim = worst(keys[: t + 1], resident, t)
                resident.remove(victim)
                gone.append(str(victim))
            resident.append(k)
    return gone


def last(past, k):
    return max((t for t, other in enumerate(past) if other == k), default=-1)


@given(REQUESTS, SLOTS)
def test_lru_twin(keys, slots):
    obvious = twin(keys, slots, lambda past, here, _: min(here, key=lambda k: last(past, k)))
    assert victims_of(make_policy("lru"), keys, slots) == obvious


@given(REQUESTS, SLOTS)
def test_lfu_twin(keys, slots):
    obvious = twin(
        keys, slots, lambda past, here, _: min(here, key=lambda k: (past.count(k), last(past, k)))
    )
    assert victims_of(make_policy("lfu"), keys, slots) == obvious


@given(REQUESTS, SLOTS)
def test_static_twin(keys, slots):
    obvious = twin(
        keys, slots, lambda past, here, _: min(here, key=lambda k: (k in (1, 2), last(past, k)))
    )
    assert victims_of(Static(["1", "2"]), keys, slots) == obvious


def aged_twin(keys, slots, worth):
    """Greedy-dual: L + uses while resident * worth; L is the priority of the last victim."""
    floor, resident, gone = 0.0, {}, []
    for t, k in enumerate(keys):
        uses = resident[k][2] + 1 if k in resident else 1
        if k not in resident and len(resident) == slots:
            victim = min(resident, key=lambda x: resident[x][:2])
            floor = max(floor, resident.pop(victim)[0])
            gone.append(str(victim))
        resident[k] = (floor + uses * worth, t, uses)
    return gone


@given(REQUESTS, SLOTS)
def test_lfu_da_twin(keys, slots):
    assert victims_of(make_policy("lfu-da"), keys, slots) == aged_twin(keys, slots, 1.0)


@given(REQUESTS, SLOTS)
def test_gdsf_twin(keys, slots):
    assert victims_of(make_policy("gdsf"), keys, slots) == aged_twin(keys, slots, 1e6)


def sieve_twin(keys, slots):
    """The paper's loop on a list, newest first, the hand a key."""
    queue, marked, hand, gone = [], set(), None, []
    for k in keys:
        if k in queue:
            marked.add(k)
            continue
        if len(queue) == slots:
            at = queue.index(hand) if hand in queue else len(queue) - 1
            while queue[at] in marked:
                marked.discard(queue[at])
                at = at - 1 if at > 0 else len(queue) - 1
            victim = queue[at]
            hand = queue[at - 1] if at > 0 else None
            queue.remove(victim)
            gone.append(str(victim))
            if hand is None and queue:
                hand = queue[-1]
        queue.insert(0, k)
    return gone


@given(REQUESTS, SLOTS)
def test_sieve_twin(keys, slots):
    assert victims_of(make_policy("sieve"), keys, slots) == sieve_twin(keys, slots)


def s3fifo_twin(keys, slots):
    small, main, ghost, uses, gone = [], [], [], {}, []

    def evict():
        while True:
            if small and (len(small) > 0.1 * slots or not main):
                k = small.pop(0)
                if uses[k] > 0:
                    uses[k] = 0
                    main.append(k)
                    continue
                ghost.append(k)
                del uses[k]
                return k
            k = main.pop(0)
            if uses[k] > 0:
                uses[k] -= 1
                main.append(k)
                continue
            del uses[k]
            return k

    for k in keys:
        if k in uses:
            uses[k] = min(uses[k] + 1, 3)
            continue
        if len(small) + len(main) == slots:
            gone.append(str(evict()))
            while len(ghost) > max(len(main), 1):
                ghost.pop(0)
        uses[k] = 0
        if k in ghost:
            ghost.remove(k)
            main.append(k)
        else:
            small.append(k)
    return gone


@given(REQUESTS, SLOTS)
def test_s3fifo_twin(keys, slots):
    assert victims_of(make_policy("s3-fifo"), keys, slots) == s3fifo_twin(keys, slots)


def test_gdsf_prefers_to_keep_what_is_dear_for_its_bytes():
    policy = make_policy("gdsf")
    for key, n_bytes, load_ms in (("dear", 10, 50.0), ("cheap", 10, 5.0), ("big", 100, 50.0)):
        use = Use(key=key, n_bytes=n_bytes, load_ms=load_ms, at_s=0.0)
        policy.used(use, resident=False)
        policy.admitted(use)
    sizes = {"dear": 10, "cheap": 10, "big": 100}
    assert policy.victims(120, sizes, at_s=1.0) == ["cheap", "big", "dear"]


@pytest.mark.parametrize("name", BASELINES)
def test_what_left_together_with_others_may_come_back_and_leave_again(name):
    policy, resident = make_policy(name), {}
    for t, (key, n_bytes) in enumerate([("a", 1), ("b", 1), ("c", 1), ("big", 3), ("a", 1)]):
        use = Use(key=key, n_bytes=n_bytes, load_ms=1.0, at_s=float(t))
        policy.used(use, resident=False)
        need = sum(resident.values()) + n_bytes - 3
        for victim in policy.victims(need, resident, at_s=float(t)) if need > 0 else []:
            del resident[victim]
            policy.evicted(victim)
        resident[key] = n_bytes
        policy.admitted(use)
    assert resident == {"a": 1}
    policy.used(Use(key="d", n_bytes=1, load_ms=1.0, at_s=9.0), resident=False)
    policy.admitted(Use(key="d", n_bytes=1, load_ms=1.0, at_s=9.0))
    oldest = "d" if name == "lfu" else "a"  # lfu: a was asked for twice
    assert policy.victims(1, {"a": 1, "d": 1}, at_s=9.0) == [oldest]


# --- the learner

CALLS = 2000


def loss_of(policy, keys, slots, load_ms=10.0):
    resident, loss = {}, 0.0
    for t, k in enumerate(keys):
        use = Use(key=str(k), n_bytes=1, load_ms=load_ms, at_s=float(t))
        policy.used(use, resident=use.key in resident)
        if use.key in resident:
            continue
        loss += load_ms
        if len(resident) == slots:
            [victim] = policy.victims(1, resident, at_s=float(t))
            del resident[victim]
            policy.evicted(victim)
        resident[use.key] = 1
        policy.admitted(use)
    return loss


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["loop", "skew", "walk", "pairs"]), st.integers(20, 200)),
        min_size=1, max_size=5,
    ),
    st.integers(2, 8),
    st.integers(0, 99),
)  # fmt: skip
def test_f16_regret_against_the_best_simple_policy_is_bounded(parts, slots, seed):
    rng = np.random.default_rng(seed)
    keys = []
    for kind, n in parts:
        if kind == "loop":
            keys += [i % 11 for i in range(n)]
        elif kind == "skew":
            keys += np.minimum(rng.geometric(0.25, n), 15).tolist()
        elif kind == "walk":
            keys += (20 + np.cumsum(rng.integers(0, 2, n)) % 30).tolist()
        else:
            keys += [int(i) % 12 + i % 2 for i in rng.integers(0, 12, n)]
    best = min(loss_of(make_policy(name), keys, slots) for name in BASELINES)
    # The slack of the guard, and the price of filling the cache anew a few times.
    assert loss_of(make_policy("learned"), keys, slots) <= 1.1 * best + 10.0 * (8 * slots + 25)


def test_f16_a_learner_that_is_wrong_is_left():
    policy = Learned(seed=1)
    value = policy._value
    value.values = lambda slots, at_s: -value.history.uses_N[slots]  # the most used goes first
    rng = np.random.default_rng(0)
    keys = np.minimum(rng.geometric(0.2, CALLS), 30).tolist()
    guarded = loss_of(policy, keys, 6)
    best = min(loss_of(make_policy(name), keys, 6) for name in BASELINES)
    fooled = Learned(seed=1, is_guarded=False)
    fool = fooled._value
    fool.values = lambda slots, at_s: -fool.history.uses_N[slots]
    assert policy.following != "value" and policy.changes >= 1
    assert loss_of(fooled, keys, 6) > 1.5 * best
    assert guarded < 1.15 * best
    assert policy.change_cost_ms <= 10.0 * 6 * policy.changes


def test_it_learns_a_cycle_that_lru_always_misses():
    keys = [i % 12 for i in range(CALLS)]
    lru = loss_of(make_policy("lru"), keys, 6)
    ours = loss_of(make_policy("learned"), keys, 6)
    assert lru == 10.0 * CALLS and ours < 0.75 * lru


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_the_cheapest_victims_are_enough_and_lose_no_more_than_the_first_in_order(rows, need):
    value_n, bytes_n = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    found = cheapest(value_n, bytes_n, need)
    assert len(set(found)) == len(found)
    assert bytes_n[found].sum() >= min(need, bytes_n.sum())
    assert len(found) == 1 or all(
        bytes_n[found].sum() - bytes_n[j] < need for j in found[:-1] if bytes_n.sum() >= need
    )


def test_one_big_adapter_of_little_worth_goes_before_many_small_ones():
    value_n, bytes_n = np.array([1.0, 1.0, 1.0, 1.01]), np.array([3.0, 3.0, 3.0, 8.0])
    assert cheapest(value_n, bytes_n, 8) == [3]
    assert cheapest(value_n, bytes_n, 3) == [0]
    assert cheapest(np.array([1.0, 1.0, 1.0, 9.0]), bytes_n, 8) == [0, 1, 2]


def test_likely_knows_what_comes_next_in_a_cycle():
    policy = make_policy("learned")
    loss_of(policy, [i % 40 for i in range(2400)], 6)
    near = [key for key, _ in policy.likely(at_s=2400.0, limit=4)]
    assert set(near) <= {str(i) for i in range(8)}


def test_context_and_tenant_tell_adapters_apart():
    policy = make_policy("learned")
    rng = np.random.default_rng(2)
    topics = rng.normal(size=(2, 16)).astype(np.float32)
    topic = 0
    for t in range(2500):
        topic = 1 - topic if rng.random() < 0.05 else topic
        key = f"{topic}-{rng.integers(0, 6)}"
        context = topics[topic] + 0.1 * rng.normal(size=16).astype(np.float32)
        policy.used(
            Use(key=key, n_bytes=1, load_ms=1.0, at_s=t, tenant=f"t{topic}", context_D=context),
            resident=True,
        )
    chances = dict(policy._value.likely(at_s=2500.0, limit=99))
    here = np.mean([p for key, p in chances.items() if key.startswith(str(topic))])
    there = np.mean([p for key, p in chances.items() if not key.startswith(str(topic))])
    assert here > 1.5 * there


def test_numbers_that_are_none_do_not_spread():
    policy = make_policy("learned")
    for t in range(400):
        odd = t % 50 == 7
        use = Use(
            key=str(t % 9),
            n_bytes=1,
            load_ms=math.inf if odd else 1.0,
            at_s=math.nan if odd else float(t),
            context_D=np.full(4, np.nan if odd else 1.0, dtype=np.float32),
        )
        policy.used(use, resident=True)
    chances = [chance for _, chance in policy.likely(at_s=400.0, limit=9)]
    assert len(chances) == 9 and np.isfinite(chances).all()
    json.dumps(policy.state(), allow_nan=False)


SOUND = [{"weights": [0.0] * len(FEATURES), "precision": np.eye(len(FEATURES)).tolist()}] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"policy": "lru"}, "is of policy 'lru'"),
        ({"life": math.nan}, "damaged"),
        ({"following": "nobody"}, "damaged"),
        ({"predictors": []}, "damaged"),
        ({"predictors": [*SOUND, {}]}, "damaged"),
        (
            {"predictors": [*SOUND, {**SOUND[0], "precision": (-np.eye(len(FEATURES))).tolist()}]},
            "damaged",
        ),
        ({"predictors": [*SOUND, {**SOUND[0], "weights": [math.nan] * len(FEATURES)}]}, "damaged"),
        ({"margin": 1e300}, "damaged"),
        ({"history": {}}, "damaged"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_taken_up(change, message):
    policy = make_policy("learned")
    loss_of(policy, [i % 7 for i in range(200)], 3)
    state = {**json.loads(json.dumps(policy.state())), **change}
    fresh = make_policy("learned")
    before = json.dumps(fresh.state())
    with pytest.raises(BadConfig, match=message):
        fresh.restore(state)
    assert json.dumps(fresh.state()) == before


def test_a_warm_start_beats_a_cold_one():
    keys = [i % 12 for i in range(2400)]
    warm = make_policy("learned")
    loss_of(warm, keys, 6)
    again = make_policy("learned")
    again.restore(json.loads(json.dumps(warm.state())))
    assert loss_of(again, keys[:600], 6) < loss_of(make_policy("learned"), keys[:600], 6)


def test_the_predictor_finds_the_weights():
    rng = np.random.default_rng(0)
    truth = np.array([-1.0, 2.0])
    predictor = Predictor(Prior(mean_F=np.zeros(2), precision_FF=np.eye(2)))
    last = np.zeros(16)
    for t in range(0, 8 * 2500, 8):
        x = np.stack([np.ones(16), rng.normal(size=16)], axis=1)
        predictor.ask(t, t + 8, np.arange(16), x)
        used = rng.random(16) < 1 / (1 + np.exp(-x @ truth))
        last = np.where(used, t + 1.0, -1.0)
        predictor.learn(t + 8, last)
    assert np.abs(predictor.weights_F - truth).max() < 0.25
