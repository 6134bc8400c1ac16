"""Tokens of the SLM that another tokenizer parts; the three conformance pairs of alignment."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fusion_rows import CLOUD_WORDS, EOS, PIECES, advice_of, log_probs
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.advice import FOREIGN, Advice, Candidate
from floe.core.errors import BadRequest
from floe.fusion.align import Alignment
from floe.fusion.carry import NOTHING, carry_after
from floe.fusion.longer import (
    LongerBlanks,
    LongerMaps,
    load_map,
    longer_tokens,
    map_name,
    save_map,
)
from floe.fusion.weights import find_weights, load_weights
from floe.testing.scripted_engine import ScriptedEngine

LOG_Q_V = log_probs(np.random.default_rng(4), len(PIECES))
IDS = {piece: i for i, piece in enumerate(PIECES)}


def greedy(text: str) -> list[int]:
    """The longest cloud word first."""
    data, out = text.encode(), []
    while data:
        n = max(
            (n for n, w in enumerate(CLOUD_WORDS) if data.startswith(w)),
            key=lambda n: len(CLOUD_WORDS[n]),
        )
        out.append(n)
        data = data[len(CLOUD_WORDS[n]) :]
    return out


def said(pairs: dict[bytes, float], tokenizer: str = "other") -> Advice:
    return Advice(
        offset_bytes=0,
        candidates=tuple(Candidate(data=d, log_prob=math.log(p)) for d, p in pairs.items()),
        tokenizer=tokenizer,
    )


LONGER = longer_tokens(pieces=PIECES, cloud_pieces=CLOUD_WORDS, cloud_tokenize=greedy)


def test_a_token_that_the_cloud_parts_stands_under_the_first_part() -> None:
    assert {k: v.tolist() for k, v in LONGER.items()} == {b"\n": [IDS[b"\n "], IDS[b"\n  "]]}


def test_a_candidate_is_shared_among_its_tokens_as_the_slm_would() -> None:
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS, longer=lambda _: LONGER)
    p_V = aligned.cloud_probs(said({b"\n": 0.6, b"ab": 0.4}), LOG_Q_V)
    assert p_V is not None
    three = [IDS[b"\n"], IDS[b"\n "], IDS[b"\n  "]]
    q = np.exp(LOG_Q_V[three].astype(float))
    assert p_V[three] == pytest.approx(0.6 * q / q.sum(), abs=1e-6)
    assert p_V[IDS[b"ab"]] == pytest.approx(0.4)


def test_after_a_longer_token_the_cloud_is_asked_anew() -> None:
    """Nothing of the cloud's token is left over: the SLM has said more than it."""
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS, longer=lambda _: LONGER)
    carry = carry_after(said({b"\n": 0.6, b"a": 0.4}), IDS[b"\n "], b"\n ", aligned)
    assert carry is NOTHING


def test_of_what_is_left_over_and_what_was_never_asked_for_the_rest_is_the_slms() -> None:
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS, longer=lambda _: LONGER)
    carry = carry_after(said({b"b\n": 0.3, b"b": 0.1, b"a": 0.6}), IDS[b"b"], b"b", aligned)
    advice = carry.joined(None, 1)
    assert advice is not None and advice.unasked == pytest.approx(0.25)
    p_V = aligned.cloud_probs(advice, LOG_Q_V)
    three = [IDS[b"\n"], IDS[b"\n "], IDS[b"\n  "]]
    q_V = np.exp(LOG_Q_V.astype(float))
    wanted = 0.25 * q_V
    wanted[three] += 0.75 * q_V[three] / q_V[three].sum()
    assert p_V == pytest.approx(wanted, abs=1e-6)


@given(st.lists(st.sampled_from(CLOUD_WORDS), min_size=1, unique=True), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_blanks_go_to_the_longest_beginning_that_was_sent(sent: list[bytes], seed: int) -> None:
    """Against trying every token; words are never shared, and no mass is lost."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 1.0, len(sent))
    pairs = dict(zip(sent, (weights / weights.sum()).tolist(), strict=True))
    log_q_V = log_probs(rng, len(PIECES))
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS)
    p_V = aligned.cloud_probs(said(pairs, FOREIGN), log_q_V)
    plain_V = aligned.cloud_probs(said(pairs, ""), log_q_V)
    if p_V is None or plain_V is None:
        assert p_V is None and plain_V is None
        return
    blank = [i for i, p in enumerate(PIECES) if p and not p.strip(b" \n")]
    word = [i for i in range(len(PIECES)) if i not in blank]
    assert p_V[word] == pytest.approx(plain_V[word], abs=1e-9)
    owner: dict[int, bytes] = {}
    for i in blank:
        begun = [w for w in sent if not w.strip(b" \n") and PIECES[i].startswith(w)]
        if begun:
            owner[i] = max(begun, key=len)
    for w in set(owner.values()):
        mine = [i for i in owner if owner[i] == w]
        extra = [i for i in blank if i not in owner and w.startswith(PIECES[i])]
        total = sum(p for d, p in pairs.items() if not d.strip(b" \n") and d == w)
        assert p_V[[*mine, *extra]].sum() >= total - 1e-6
    found = LongerBlanks(IDS).of(sent)
    for n, ids in found.items():
        assert {owner[int(i)] for i in ids} == {sent[n]}


# --- conformance: a model under itself, a padded vocabulary, SmolLM2 and Qwen


def test_a_model_under_itself_is_the_identity(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    pieces = [engine.token_bytes(i) for i in range(engine.info.n_vocab)]
    ids = {p: i for i, p in enumerate(pieces) if p}
    own = longer_tokens(
        pieces=pieces,
        cloud_pieces=pieces,
        cloud_tokenize=lambda text: [ids[bytes([b])] for b in text.encode()],
    )
    assert own == {}
    digest = engine.info.tokenizer_digest
    maps = LongerMaps(own_tokenizer=digest, n_vocab=len(pieces), folder=tmp_path)
    log_p_V = engine.log_probs(engine.tokenize("Tell me"))
    log_q_V = ScriptedEngine(seed=5).log_probs(engine.tokenize("Tell me"))
    whole = Advice(
        offset_bytes=0,
        candidates=tuple(Candidate(data=p, log_prob=float(log_p_V[i])) for p, i in ids.items()),
        tokenizer=digest,
    )
    aligned = Alignment(token_bytes=pieces, eos_ids=engine.info.eos_ids, longer=maps)
    p_V = aligned.cloud_probs(whole, log_q_V)
    assert p_V is not None
    some = [i for p, i in ids.items()]
    ratio = p_V[some] / np.exp(log_p_V[some].astype(float))
    assert ratio == pytest.approx(ratio[0], rel=1e-3)  # the ends' share is spread over all
    for piece, token in ids.items():
        assert carry_after(whole, token, piece, aligned) is NOTHING


def test_b37_a_padded_vocabulary_is_the_same_one() -> None:
    """500 real ids, 512 rows: padded rows have no bytes, so they are neither sent nor mapped."""
    real = [b"%03d" % i for i in range(499)] + [b""]
    padded = [*real, *[b""] * 12]
    assert longer_tokens(pieces=real, cloud_pieces=padded, cloud_tokenize=lambda _: [511]) == {}
    rng = np.random.default_rng(0)
    log_p, log_q_V = log_probs(rng, 499), log_probs(rng, 500)
    whole = Advice(
        offset_bytes=0,
        candidates=tuple(Candidate(data=padded[i], log_prob=float(log_p[i])) for i in range(499)),
    )
    p_V = Alignment(token_bytes=real, eos_ids=frozenset({499})).cloud_probs(whole, log_q_V)
    assert p_V is not None and p_V.shape == (500,)
    assert p_V[:499] == pytest.approx(np.exp(log_p.astype(float)), rel=1e-4)


def test_the_shipped_map_and_weights_are_those_of_smollm2_and_qwen(
    slm_gguf: Path, cloud_gguf: Path
) -> None:
    from floe.engine.llamacpp import LlamaCppEngine

    slm = LlamaCppEngine(slm_gguf, threads=1, context_tokens=64, max_contexts=1)
    llm = LlamaCppEngine(cloud_gguf, threads=1, context_tokens=64, max_contexts=1)
    try:
        pieces = [slm.token_bytes(t) for t in range(slm.info.n_vocab)]
        cloud_pieces = [llm.token_bytes(t) for t in range(llm.info.n_vocab)]
        made = longer_tokens(
            pieces=pieces, cloud_pieces=cloud_pieces, cloud_tokenize=lambda t: llm.tokenize(t)
        )
        pair = (slm.info.tokenizer_digest, llm.info.tokenizer_digest)
        maps = LongerMaps(own_tokenizer=pair[0], n_vocab=len(pieces), folder=Path("/none"))
        shipped = maps(pair[1])
        text = "def f(x):\n    return x\n"
        parted = [cloud_pieces[t] for t in llm.tokenize(text)]
        joined = [pieces[t] for t in slm.tokenize(text)]
    finally:
        slm.close()
        llm.close()
    weights = find_weights(Path("/none"), slm.info.digest)
    assert weights is not None
    learned = load_weights(weights, slm=slm.info.digest, slm_tokenizer=pair[0])
    assert learned.pair.cloud_tokenizer == pair[1]
    assert shipped is not None and shipped.keys() == made.keys()
    assert all((shipped[k] == made[k]).all() for k in made)
    assert b"\n   " in joined and b"\n   " not in parted  # what it is for
    assert pieces.index(b"\n   ") in shipped[b"\n"]


# --- on disk


def test_a_map_comes_back_as_it_was_and_is_looked_up_once(tmp_path: Path) -> None:
    path = tmp_path / map_name("own", "other")
    save_map(LONGER, path, pair=("own", "other"))
    maps = LongerMaps(own_tokenizer="own", n_vocab=len(PIECES), folder=tmp_path)
    found = maps("other")
    assert found is not None and {k: v.tolist() for k, v in found.items()} == {
        k: v.tolist() for k, v in LONGER.items()
    }
    path.unlink()
    assert maps("other") is found
    assert maps("a third") is None and maps("own") == {}


def test_an_empty_map_comes_back_empty(tmp_path: Path) -> None:
    save_map({}, tmp_path / "m.npz", pair=("a", "b"))
    assert load_map(tmp_path / "m.npz", pair=("a", "b"), n_vocab=3) == {}


def _garbage(path: Path) -> None:
    path.write_bytes(b"no map")


def _another_pair(path: Path) -> None:
    save_map(LONGER, path, pair=("own", "somebody else's"))


def _ids_too_high(path: Path) -> None:
    save_map({b"a": np.array([999])}, path, pair=("own", "other"))


@pytest.mark.parametrize("write", [_garbage, _another_pair, _ids_too_high])
def test_a_file_that_is_no_map_of_the_pair_is_refused(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "m.npz")
    with pytest.raises(BadRequest, match=r"is no map of these two tokenizers.*floe fusion map"):
        load_map(tmp_path / "m.npz", pair=("own", "other"), n_vocab=len(PIECES))


def test_advice_without_a_tokenizer_is_the_slms_own() -> None:
    """No sharing: with one tokenizer a candidate is exactly its token."""
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS, longer=lambda _: LONGER)
    p_V = aligned.cloud_probs(said({b"\n": 1.0}, ""), LOG_Q_V)
    assert p_V is not None and p_V[IDS[b"\n"]] == pytest.approx(1.0)
    foreign = Alignment(token_bytes=PIECES, eos_ids=EOS, tokenizer=FOREIGN)
    p_V = foreign.cloud_probs(said({b"\n": 1.0}, ""), LOG_Q_V)
    assert p_V is not None and p_V[IDS[b"\n"]] < 0.9


def test_the_joined_advice_is_of_the_same_tokenizer() -> None:
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS)
    advice = advice_of(np.random.default_rng(0), 0, "other")
    carry = carry_after(advice, IDS[b"b"], b"b", aligned)
    joined = carry.joined(None, 1)
    assert joined is not None and joined.tokenizer == "other"
