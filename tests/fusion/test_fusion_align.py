from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.advice import Advice, Candidate
from floe.fusion import align
from floe.fusion.align import Alignment
from floe.testing.scripted_engine import ScriptedEngine

SLM = [b"a", b"b", b"ab", b"abc", b" ", b" a", b"c", b"", b""]
EOS = frozenset({7, 8})
Q = np.log(np.array([0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.15])).astype(np.float32)


def alignment() -> Alignment:
    return Alignment(token_bytes=SLM, eos_ids=EOS)


def advice(*pairs: tuple[bytes, float]) -> Advice:
    return Advice(
        offset_bytes=0,
        candidates=tuple(
            Candidate(data=b"" if data == b"END" else data, log_prob=np.log(p), end=data == b"END")
            for data, p in pairs
        ),
    )


def slow_map(full: list[tuple[bytes, float]], log_q_V: np.ndarray) -> list[float]:
    """The cloud's whole distribution on SLM ids, by trying every token."""
    out = [0.0] * len(SLM)
    for data, p in full:
        if data == b"END":
            hits = sorted(sorted(EOS), key=lambda i: -log_q_V[i])[:1]
        else:
            hits = [i for i, piece in enumerate(SLM) if piece and data.startswith(piece)]
            hits = sorted(hits, key=lambda i: -len(SLM[i]))[:1]
        for i in hits:
            out[i] += p
    return out


def test_a_cloud_token_counts_for_the_longest_slm_token_it_begins_with() -> None:
    a = alignment()
    assert [a.token_of(d) for d in (b"abcd", b"abx", b"ax", b" ab", b"zz", b"")] == [
        3, 2, 0, 5, None, None,
    ]  # fmt: skip


def test_masses_on_one_token_are_summed_and_the_end_goes_to_the_likelier_end_token() -> None:
    p_V = alignment().cloud_probs(advice((b"abx", 0.3), (b"ab", 0.2), (b"END", 0.5)), Q)
    assert p_V is not None
    assert p_V == pytest.approx([0, 0, 0.5, 0, 0, 0, 0, 0, 0.5])


def test_nothing_that_maps_is_no_advice() -> None:
    assert alignment().cloud_probs(advice(), Q) is None
    assert alignment().cloud_probs(advice((b"zz", 0.9)), Q) is None
    without_end = Alignment(token_bytes=SLM, eos_ids=frozenset())
    assert without_end.cloud_probs(advice((b"END", 0.9)), Q) is None


def test_a_mass_above_one_is_scaled_and_a_positive_log_prob_counts_as_one() -> None:
    wrong = Advice(
        offset_bytes=0,
        candidates=(Candidate(data=b"a", log_prob=3.0), Candidate(data=b"b", log_prob=0.0)),
    )
    p_V = alignment().cloud_probs(wrong, Q)
    assert p_V is not None and p_V[:2] == pytest.approx([0.5, 0.5])


@st.composite
def cloud_distributions(draw: st.DrawFn) -> tuple[list[tuple[bytes, float]], int]:
    pieces = draw(
        st.lists(
            st.sampled_from(
                [b"a", b"ab", b"abc", b"abcd", b"b", b" ", b" a", b" ab", b"c", b"ca", b"zz",
                 b"END", b"bb", b" b", b"  "]
            ),
            min_size=1, max_size=12, unique=True,
        )
    )  # fmt: skip
    weights = draw(st.lists(st.floats(0.001, 1.0), min_size=len(pieces), max_size=len(pieces)))
    total = sum(weights)
    full = sorted(zip(pieces, (w / total for w in weights), strict=True), key=lambda x: -x[1])
    return full, draw(st.integers(1, len(pieces)))


@given(cloud_distributions(), st.lists(st.floats(-6, 0), min_size=9, max_size=9))
@settings(max_examples=300, deadline=None)
def test_what_was_not_sent_moves_the_distribution_by_at_most_its_mass(
    case: tuple[list[tuple[bytes, float]], int], logits: list[float]
) -> None:
    full, k = case
    log_q_V = np.array(logits) - np.log(np.exp(logits).sum())
    log_q_V = log_q_V.astype(np.float32)
    p_V = alignment().cloud_probs(advice(*full[:k]), log_q_V)
    sent = slow_map(full[:k], log_q_V)
    if sum(sent) == 0:
        assert p_V is None
        return
    assert p_V is not None and p_V.min() >= 0 and p_V.sum() == pytest.approx(1.0)
    exact = np.array(slow_map(full, log_q_V))
    missing = 1.0 - sum(sent)
    assert np.maximum(exact - p_V, 0.0).sum() <= missing + 1e-6
    assert sent[int(np.argmax(p_V))] == pytest.approx(max(sent))  # invariant 3, w = 0


@given(st.lists(st.integers(32, 126), max_size=12), st.integers(1, 271))
@settings(max_examples=60, deadline=None)
def test_b37_with_one_tokenizer_the_map_is_the_identity(tokens: list[int], k: int) -> None:
    engine = ScriptedEngine()
    pieces = [engine.token_bytes(i) for i in range(engine.info.n_vocab)]
    a = Alignment(token_bytes=pieces, eos_ids=engine.info.eos_ids)
    assert all(a.token_of(piece) == i for i, piece in enumerate(pieces) if piece)
    log_p_V = engine.log_probs(tokens)
    order = [int(i) for i in np.argsort(-log_p_V)][:k]
    order = [i for i in order if pieces[i] or i in engine.info.eos_ids]
    p_V = a.cloud_probs(
        Advice(
            offset_bytes=0,
            candidates=tuple(
                Candidate(data=pieces[i], log_prob=float(log_p_V[i]), end=i in engine.info.eos_ids)
                for i in order
            ),
        ),
        ScriptedEngine(seed=9).log_probs(tokens),
    )
    assert p_V is not None and int(np.argmax(p_V)) in {order[0], *engine.info.eos_ids}
    if k == 271:
        plain = [i for i in order if pieces[i]]
        assert p_V[plain] == pytest.approx(np.exp(log_p_V[plain].astype(float)), rel=1e-3)


def test_the_cache_of_a_cloud_that_invents_tokens_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(align, "_CACHE_ENTRIES", 10)
    a = alignment()
    assert all(a.token_of(b"a%d" % i) == 0 for i in range(25))
    assert len(a._cache) <= 10
