"""What an update must be: every refusal by its name, every good one taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federated.learning_stand_ins import (
    EXPECTED,
    SHAPES,
    a_state,
    an_update,
    dense,
    signer,
    verify,
)

from floe.core.errors import BadUpdate
from floe.federated.checks import REASONS, change_norm, check_arrays, check_sender, check_update
from floe.federated.identity import Sealed, seal, unseal
from floe.federated.rounds import Opened, Past
from floe.federated.update import AdapterState, Factors, Update

OPENED = Opened(round_number=3, nonce="now", selected=("a", "b"))
PAST = (Past(round_number=2, nonce="before", accepted=("a",)),)
DEVICES = {"a": "key-a", "b": "key-b", "c": "key-c"}


def sealed(client: str = "a", *, nonce: str = "now", key: str | None = None) -> Sealed:
    data = seal(
        b"payload", client=client, round_number=3, nonce=nonce, sign=signer(key or f"key-{client}")
    )
    return unseal(data)


def refused_sender(one: Sealed, **change: object) -> BadUpdate:
    given = {"devices": DEVICES, "verify": verify, "past": PAST, "taken": (), **change}
    with pytest.raises(BadUpdate) as refused:
        check_sender(one, OPENED, **given)  # type: ignore[arg-type]
    return refused.value


def test_a_selected_devices_first_signed_update_is_taken() -> None:
    check_sender(sealed("a"), OPENED, devices=DEVICES, verify=verify, past=PAST, taken=("b",))


@pytest.mark.parametrize(
    ("one", "reason", "says"),
    [
        (sealed("stranger"), "unregistered", "'stranger' is no registered device"),
        (sealed("a", key="key-b"), "unsigned", "'a' has no valid signature"),
        (replace(sealed("a"), signature=b""), "unsigned", "has no valid signature"),
        (replace(sealed("a"), payload=b"other"), "unsigned", "has no valid signature"),
        (replace(sealed("a"), round_number=4), "unsigned", "has no valid signature"),
        (sealed("c"), "not_selected", "'c' was not asked in round 3"),
        (sealed("a", nonce="before"), "replayed", "'a' was taken into round 2 already"),
        (sealed("b", nonce="before"), "late", "'b' came after round 2 had ended"),
        (sealed("a", nonce="unknown"), "wrong_round", "is for no round of this server"),
    ],
)
def test_c07_a_stranger_a_forger_a_copy_and_a_latecomer_are_refused(
    one: Sealed, reason: str, says: str
) -> None:
    error = refused_sender(one)
    assert error.reason == reason
    assert says in error.message


def test_c07_a_second_update_for_one_round_is_refused() -> None:
    error = refused_sender(sealed("a"), taken=("a",))
    assert error.reason == "duplicate"
    assert "is in round 3 already" in error.message


def test_a_strangers_name_is_repeated_in_part_only() -> None:
    assert len(refused_sender(sealed("x" * 1000)).message) < 130


def refused(update: Update, **change: object) -> BadUpdate:
    given = {"start": None, "started_from": "", "cluster": "", **change}
    one = replace(sealed("a"), round_number=1)
    with pytest.raises(BadUpdate) as error:
        check_update(update, one, EXPECTED, **given)  # type: ignore[arg-type]
    assert error.value.reason in REASONS
    return error.value


def bent(name: str, **change: np.ndarray) -> AdapterState:
    state = a_state()
    return replace(state, modules={**state.modules, name: replace(state.modules[name], **change)})


def poisoned(value: float) -> AdapterState:
    b = a_state().modules["layer.v"].b_OR.copy()
    b[1, 1] = value
    return bent("layer.v", b_OR=b)


def test_a_good_update_is_taken() -> None:
    one = replace(sealed("a"), round_number=1)
    check_update(an_update("a"), one, EXPECTED, start=None, started_from="", cluster="")


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        ({"client": "b"}, "impostor", "says something else inside its seal"),
        ({"round_number": 2}, "impostor", "says something else inside its seal"),
        ({"n_examples": 0}, "no_examples", "was trained on no examples"),
        ({"n_examples": -5}, "no_examples", "was trained on no examples"),
        ({"started_from": "x"}, "wrong_start", "did not start from the adapter it was given"),
        ({"cluster": "x"}, "wrong_start", "did not start from the adapter it was given"),
        ({"state": a_state(base_digest="other")}, "wrong_base", "is for another base model"),
        ({"state": a_state(modules={})}, "empty", "has no factors"),
        ({"state": a_state(rank=0)}, "empty", "or factors of size 0"),
        ({"state": a_state(rank=9)}, "rank_too_large", "has rank 9, above 8"),
        ({"state": poisoned(np.nan)}, "nan", "holds NaN in layer.v"),
        ({"state": poisoned(np.inf)}, "infinite", "holds infinity in layer.v"),
        ({"state": poisoned(-np.inf)}, "infinite", "holds infinity in layer.v"),
        (
            {"state": bent("layer.q", b_OR=np.ones((4, 2), np.float32))},
            "wrong_shape",
            "has layer.q as (4, 4), not (6, 4)",
        ),
        (
            {"state": bent("layer.q", b_OR=np.ones((6, 3), np.float32))},
            "wrong_shape",
            "has factors in layer.q that do not multiply",
        ),
        (
            {"state": bent("layer.q", a_RI=np.ones(8, np.float32))},
            "wrong_shape",
            "do not multiply",
        ),
        (
            {"state": bent("layer.q", b_OR=np.ones((6, 2), np.int64))},
            "wrong_type",
            "has float32 and int64 in layer.q, not float32",
        ),
    ],
)
def test_c04_c05_c11_bad_arrays_are_refused_by_name(
    change: Mapping[str, object], reason: str, says: str
) -> None:
    error = refused(replace(an_update("a"), **change))  # type: ignore[arg-type]
    assert error.reason == reason
    assert says in error.message


def test_c04_missing_and_foreign_layers_are_refused() -> None:
    state = a_state()
    partial = {"layer.q": state.modules["layer.q"]}
    assert refused(an_update("a", state=replace(state, modules=partial))).reason == "wrong_keys"
    more = {**state.modules, "layer.z": state.modules["layer.q"]}
    error = refused(an_update("a", state=replace(state, modules=more)))
    assert "too many or too few layers (1 differ)" in error.message


def test_a_count_that_is_no_count_is_refused() -> None:
    assert refused(an_update("a", n_examples=True)).reason == "no_examples"
    assert refused(an_update("a", n_examples=2.5)).reason == "no_examples"


def test_c07_values_of_a_million_are_refused_where_a_norm_is_set() -> None:
    limit = replace(EXPECTED, max_norm=50.0)
    one = replace(sealed("a"), round_number=1)
    with pytest.raises(BadUpdate, match="moves further than 50"):
        check_update(
            an_update("a", state=a_state(scale=1e6)),
            one,
            limit,
            start=None,
            started_from="",
            cluster="",
        )


def test_a_far_start_is_no_large_change() -> None:
    start = a_state(scale=1e3)
    near = replace(
        start,
        modules={
            n: Factors(a_RI=f.a_RI, b_OR=f.b_OR + np.float32(1e-3))
            for n, f in start.modules.items()
        },
    )
    check_arrays(near, EXPECTED, client="a")
    assert change_norm(start, near) < 1.0 < change_norm(None, near)


@given(seed=st.integers(0, 50), rank=st.integers(1, 6), start_rank=st.integers(0, 6))
def test_the_norm_is_that_of_the_dense_change(seed: int, rank: int, start_rank: int) -> None:
    state = a_state(seed, rank=rank)
    start = a_state(seed + 1, rank=start_rank) if start_rank else None
    before = dense(start) if start is not None else {n: np.zeros(s) for n, s in SHAPES.items()}
    slow = np.sqrt(sum(np.sum((m - before[n]) ** 2) for n, m in dense(state).items()))
    assert change_norm(start, state) == pytest.approx(slow, rel=1e-5)
