"""Counts, and nothing but counts, say whether a candidate is published."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadConfig
from floe.federated.publish_gate import gate, is_worse

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("candidate", "current", "worse"),
    [
        (1.0, 1.0, False), (1.05, 1.0, False), (1.051, 1.0, True), (0.5, 1.0, False),
        (NAN, 1.0, True), (INF, 1.0, True), (1.0, NAN, False), (1.0, INF, False), (NAN, NAN, True),
    ],
)  # fmt: skip
def test_c01_a_loss_that_is_no_number_is_worse(
    candidate: float, current: float, worse: bool
) -> None:
    assert is_worse(candidate, current, margin=0.05) == worse


@pytest.mark.parametrize("margin", [NAN, INF, -0.1])
def test_c11_a_margin_is_finite(margin: float) -> None:
    with pytest.raises(BadConfig, match="margin must be finite and 0 or more"):
        is_worse(1.0, 1.0, margin=margin)


@given(
    verdicts=st.dictionaries(st.text(max_size=4), st.sampled_from([True, False, None])),
    least=st.integers(1, 5),
)
def test_one_member_worse_off_stops_it_and_only_counts_are_told(
    verdicts: dict[str, bool | None], least: int
) -> None:
    result = gate(verdicts, min_members=least)
    given_ = [v for v in verdicts.values() if v is not None]
    assert result.passes == (len(given_) >= least and not any(given_))
    assert bool(result.why) != result.passes
    if len(given_) < least:  # too few to hide anybody among
        assert (result.worse, result.not_worse, result.silent) == (None, None, None)
        assert result.facts() == {} and result.why == f"fewer than {least} members judged it"
    else:
        assert result.facts() == {"worse": given_.count(True), "not_worse": given_.count(False)}
        assert result.silent == len(verdicts) - len(given_)
    again = gate({f"other {k}": v for k, v in verdicts.items()}, min_members=least)
    assert again == result  # whoever they are


def test_c02_nobody_judging_is_no_approval() -> None:
    assert not gate({}, min_members=1).passes
    assert not gate({"a": None, "b": None}, min_members=1).passes
    with pytest.raises(BadConfig, match="min_members must be 1 or more"):
        gate({}, min_members=0)


def test_what_is_said_of_a_refusal() -> None:
    result = gate({"a": True, "b": False, "c": False}, min_members=2)
    assert result.why == "1 of 3 members are worse off with it"
