from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.advice import Advice, Candidate
from floe.fusion.align import Alignment
from floe.fusion.carry import NOTHING, carry_after

PIECES = [b"a", b"b", b"ab", b"c", b" ", b""]
EOS = frozenset({5})
WORDS = [b"a", b"ab", b"abc", b"abcb", b"ac", b"b", b"ba", b" ", b" a"]


def aligned() -> Alignment:
    return Alignment(token_bytes=PIECES, eos_ids=EOS)


def advice(masses: dict[bytes, float], offset: int = 0) -> Advice:
    return Advice(
        offset_bytes=offset,
        candidates=tuple(
            Candidate(data=d, log_prob=math.log(p), end=not d) for d, p in masses.items()
        ),
    )


def shares(of: Advice | None) -> dict[bytes, float]:
    assert of is not None
    out: dict[bytes, float] = {}
    for c in of.candidates:
        out[c.data] = out.get(c.data, 0.0) + math.exp(c.log_prob)
    return out


def test_the_rest_of_a_longer_word_is_carried_and_the_fresh_share_is_asked_for() -> None:
    said = advice({b"ab": 0.3, b"abc": 0.2, b"a": 0.1, b"": 0.2, b"b": 0.1})
    carry = carry_after(said, 2, b"ab", aligned())
    assert carry.rests == ((b"c", pytest.approx(0.4)),) and carry.fresh == pytest.approx(0.6)
    assert carry.needs_advice
    joined = carry.joined(advice({b"c": 0.5, b"": 0.5}, 2), 2)
    assert joined is not None and joined.offset_bytes == 2
    assert shares(joined) == pytest.approx({b"c": 0.4 + 0.3, b"": 0.3})


def test_where_no_word_ended_nothing_new_can_be_asked() -> None:
    carry = carry_after(advice({b"ac": 0.5, b"b": 0.5}), 0, b"a", aligned())
    assert not carry.needs_advice
    assert shares(carry.joined(None, 1)) == pytest.approx({b"c": 1.0})
    assert shares(carry.joined(advice({b"zz": 1.0}, 1), 1)) == pytest.approx({b"c": 1.0})


def test_nothing_is_carried_from_no_advice_or_from_a_token_the_cloud_did_not_mean() -> None:
    assert carry_after(None, 0, b"a", aligned()) is NOTHING
    assert carry_after(advice({b"ab": 1.0}), 0, b"a", aligned()) is NOTHING
    said = advice({b"q": 0.5})
    assert NOTHING.joined(said, 0) is said and NOTHING.joined(None, 0) is None


@given(st.dictionaries(st.sampled_from([p for p in PIECES if p]), st.floats(0.01, 1), min_size=1))
@settings(max_examples=50, deadline=None)
def test_with_one_tokenizer_nothing_is_ever_carried(weights: dict[bytes, float]) -> None:
    total = sum(weights.values())
    said = advice({d: w / total for d, w in weights.items()})
    for token, piece in enumerate(PIECES[:-1]):
        assert carry_after(said, token, piece, aligned()) is NOTHING


@given(
    st.dictionaries(st.sampled_from(WORDS), st.floats(0.01, 1), min_size=1),
    st.dictionaries(st.sampled_from([*WORDS, b""]), st.floats(0.01, 1), min_size=1),
)
@settings(max_examples=200, deadline=None)
def test_the_joined_advice_is_the_chain_rule(
    first: dict[bytes, float], then: dict[bytes, float]
) -> None:
    """p(what follows the drawn token) from all pairs (first word, next word), by counting."""
    first = {d: w / sum(first.values()) for d, w in first.items()}
    then = {d: w / sum(then.values()) for d, w in then.items()}
    a = aligned()
    for token, piece in enumerate(PIECES[:-1]):
        meant = {d: p for d, p in first.items() if a.token_of(d) == token}
        if not meant:
            continue
        wanted: dict[bytes, float] = {}
        for word, p in meant.items():
            follow = {word[len(piece) :]: 1.0} if len(word) > len(piece) else then
            for data, q in follow.items():
                wanted[data] = wanted.get(data, 0.0) + p * q / sum(meant.values())
        carry = carry_after(advice(first), token, piece, a)
        assert shares(carry.joined(advice(then, 1), 1)) == pytest.approx(wanted)
