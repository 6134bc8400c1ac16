"""The semantic score: what it finds, its threshold, its windows, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from floe.core.errors import BadConfig, BadModel, Missing
from floe.core.sections import PrivacyConfig
from floe.models.cache import PulledModel
from floe.privacy.build import build_gate
from floe.privacy.policy import policy_of
from floe.privacy.semantic import SemanticDetector
from floe.privacy.semantic_features import (
    CUES,
    HASH_SIZE,
    MAX_WINDOW_CHARS,
    features,
    windows,
    word_id,
)
from floe.privacy.semantic_head import Head, load_head, save_head, shipped_head
from floe.routing.embed import StaticEmbedding

PRIVATE = [
    "My sister was admitted to the oncology ward last night.",
    "I owe my landlord two months of rent and I can't pay.",
    "My husband is having an affair and the kids don't know.",
    "We are going to lay off forty people in March, keep this between us.",
    "I was arrested for drunk driving and my employer must not find out.",
    "Priya has been in therapy since her divorce.",
    "我被确诊抑郁症，不想让单位知道。",
    "我老公出轨了，我打算离婚，孩子还不知道。",
    "我欠了网贷二十万，不敢跟我爸说。",
    "公司下个月要裁员一半，还没公布，你别说。",
]
GENERAL = [
    "What are the symptoms of diabetes?",
    "Explain bankruptcy law.",
    "Write a haiku about the sea.",
    "Write a Python function that sorts a list.",
    "What is the capital of France?",
    "Tell me a story",
    "Hello",
    "My mail is tom@example.org. Write a greeting.",
    "Natalia sold clips to 48 of her friends, and then she sold half as many clips in May.",
    "糖尿病有哪些症状？",
    "请解释破产法的主要内容。",
    "写一首关于秋天的诗。",
    "法国的首都是哪里？",
]


class FakeEncoder:
    """Nothing but zeros, or what it is told."""

    def __init__(self, head: Head, value: float = 0.0, digest: str = "") -> None:
        self.digest = digest or head.encoder_digest
        self._vector = np.full(len(head.plain_D), value, dtype=np.float32)
        self.calls = 0

    def __call__(self, text: str) -> NDArray[np.float32]:
        self.calls += 1
        return self._vector


@pytest.fixture(scope="module")
def head() -> Head:
    return shipped_head()


@pytest.fixture(scope="module")
def encoder(pulled: Callable[[str], PulledModel]) -> StaticEmbedding:
    found = pulled("wordllama-256")
    return StaticEmbedding(
        weights=found.files["weights"], tokenizer=found.files["tokenizer"], digest=found.digest
    )


@pytest.fixture(scope="module")
def detector(encoder: StaticEmbedding) -> SemanticDetector:
    return SemanticDetector(encoder=encoder)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_matters_are_found(detector: SemanticDetector, text: str) -> None:
    (span,) = detector.find(text)
    assert (span.entity, span.start, span.end) == ("PRIVATE_MATTER", 0, len(text))
    assert span.score >= 0.5


@pytest.mark.parametrize("text", GENERAL)
def test_general_requests_are_not_found(detector: SemanticDetector, text: str) -> None:
    assert all(span.score < 0.5 for span in detector.find(text))


def test_a_second_look_and_a_second_detector_say_the_same(encoder: StaticEmbedding) -> None:
    first, second = SemanticDetector(encoder=encoder), SemanticDetector(encoder=encoder)
    once = [first.find(t) for t in PRIVATE + GENERAL]
    assert [first.find(t) for t in PRIVATE + GENERAL] == once
    assert [second.find(t) for t in reversed(PRIVATE + GENERAL)] == once[::-1]


def test_the_threshold_becomes_one_half(encoder: StaticEmbedding) -> None:
    text = PRIVATE[0]
    exact = SemanticDetector(encoder=encoder).probability(text)
    assert SemanticDetector(encoder=encoder, threshold=exact).find(text)[0].score == 0.5
    above = SemanticDetector(encoder=encoder, threshold=(exact + 1) / 2).find(text)
    assert all(span.score < 0.5 for span in above)
    assert SemanticDetector(encoder=encoder).threshold == shipped_head().threshold


def test_a_hidden_character_hides_nothing(detector: SemanticDetector) -> None:
    text = "My sister was ad\u200bmitted to the onco\u200blogy ward last night."
    (span,) = detector.find(text)
    assert span.score >= 0.5
    assert (span.start, span.end) == (0, len(text))


def test_one_private_passage_in_a_long_text_is_found(detector: SemanticDetector) -> None:
    plain = "The Roman Empire reached its greatest extent under Trajan. " * 40
    text = plain + "\n" + " ".join(PRIVATE[:3]) + "\n" + plain
    found = [span for span in detector.find(text) if span.score >= 0.5]
    assert any(PRIVATE[1][:20] in text[span.start : span.end] for span in found)
    assert sum(span.end - span.start for span in found) <= 3 * MAX_WINDOW_CHARS


def test_b35_another_encoder_is_refused(head: Head) -> None:
    with pytest.raises(BadModel, match="trained with another embedding") as caught:
        SemanticDetector(encoder=FakeEncoder(head, digest="f" * 64))
    assert "scripts/train_semantic.py" in str(caught.value)


def test_a_score_that_is_no_number_is_an_error_without_the_text(head: Head) -> None:
    detector = SemanticDetector(encoder=FakeEncoder(head, value=float("nan")))
    with pytest.raises(ValueError, match="the semantic score is not finite") as caught:
        detector.find("My aunt Zerlinda is ill")
    assert "Zerlinda" not in str(caught.value)


def test_a_window_is_scored_once_and_chinese_needs_no_embedding(head: Head) -> None:
    encoder = FakeEncoder(head)
    detector = SemanticDetector(encoder=encoder)
    for _ in range(3):
        detector.find(PRIVATE[0])
    detector.find("我被确诊抑郁症，不想让单位知道。")
    assert encoder.calls == 1


def test_the_memory_of_scores_is_bounded_and_holds_no_text(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floe.privacy.semantic._CACHED_WINDOWS", 8)
    detector = SemanticDetector(encoder=FakeEncoder(head))
    for i in range(40):
        detector.find(f"My aunt number {i} is ill")
    assert len(detector._known) == 8
    assert b"aunt" not in b"".join(detector._known)


def test_the_longest_input_makes_few_windows(head: Head) -> None:
    """The work on 100,000 characters is bounded by the count of windows, whatever stands there."""
    for text in ("a" * 100_000, "我" * 100_000, "Hm. " * 25_000, "x\n" * 50_000, " " * 100_000):
        places = windows(text)
        assert len(places) <= 2 * len(text) / MAX_WINDOW_CHARS + 1
        encoder = FakeEncoder(head)
        SemanticDetector(encoder=encoder).find(text)
        assert encoder.calls <= len(places)


@given(st.text(alphabet=st.sampled_from("ab .!?\n。我！\u200b\"'é"), max_size=1200))
def test_windows_hold_every_character_that_is_not_white_space(text: str) -> None:
    places = windows(text)
    covered = {i for start, end in places for i in range(start, end)}
    # What closes a sentence may stand between two windows.
    assert all(i in covered or text[i].isspace() or text[i] in "\"'" for i in range(len(text)))
    assert all(0 < end - start <= MAX_WINDOW_CHARS for start, end in places)
    assert all(a[1] <= b[0] for a, b in pairwise(places))


@given(st.text(max_size=300))
def test_any_text_has_features_in_range(text: str) -> None:
    seen = features(text, known_words=frozenset())
    assert len(seen.cues) == len(CUES)
    assert all(0 <= place < HASH_SIZE for place in (*seen.words, *seen.chars))
    assert seen == features(text, known_words=frozenset())


def test_an_unknown_word_in_capitals_is_a_name() -> None:
    known = frozenset({word_id("yesterday"), word_id("ill"), word_id("was")})
    one = features("Yesterday Zerlinda was ill", known_words=known)
    other = features("Yesterday Quentin was ill", known_words=known)
    assert one == other
    assert one != features("Yesterday ill was ill", known_words=known)


def test_the_score_is_the_sum_of_its_parts(head: Head) -> None:
    """An obvious twin of `Head.logit`."""
    text = "My brother owes $400, and he is ill. Is he?"
    seen = features(text, known_words=head.known_words)
    rng = np.random.default_rng(1)
    vector_D = rng.normal(size=len(head.plain_D)).astype(np.float32)
    total = sum(w * c for w, c in zip(head.cues_C.tolist(), seen.cues, strict=True))
    for places, weights_H in ((seen.words, head.words_H), (seen.chars, head.chars_H)):
        for place in places:
            total += float(weights_H[place]) * 2.5 / (len(places) + 4) ** 0.5
    for weights_D in (head.plain_D, head.first_D, head.other_D):  # he and my: both persons
        total += 4 * sum(a * b for a, b in zip(vector_D.tolist(), weights_D.tolist(), strict=True))
    assert head.logit(seen, vector_D) == pytest.approx(total, rel=1e-4)


def test_a_head_is_read_as_it_was_written(head: Head, tmp_path: Path) -> None:
    save_head(head, tmp_path / "head.npz")
    again = load_head(tmp_path / "head.npz")
    for name in ("cues_C", "words_H", "chars_H", "plain_D", "first_D", "other_D"):
        assert (getattr(again, name) == getattr(head, name)).all()
    assert again.known_words == head.known_words
    assert (again.slope, again.offset, again.threshold) == (
        head.slope,
        head.offset,
        head.threshold,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "floe-semantic-0"}, "made for other features"),
        ({"cues": ["bias"]}, "made for other features"),
        ({"threshold": 1.5}, "no number that can be"),
        ({"slope": float("nan")}, "no number that can be"),
        ({"threshold": "high"}, "is not a semantic head"),
    ],
)
def test_a_head_with_a_wrong_card_is_refused(
    head: Head, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    save_head(replace(head, card={**head.card, **change}), tmp_path / "head.npz")
    with pytest.raises(BadModel, match=message):
        load_head(tmp_path / "head.npz")


def test_damaged_weights_are_refused(head: Head, tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    save_head(replace(head, words_H=head.words_H[:-1]), path)
    with pytest.raises(BadModel, match="'words' have a wrong shape"):
        load_head(path)
    save_head(replace(head, cues_C=head.cues_C * np.nan), path)
    with pytest.raises(BadModel, match="'cues' have a wrong shape or are not finite"):
        load_head(path)
    path.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(BadModel, match="is not a semantic head"):
        load_head(path)
    path.write_bytes(bytes(5_000_000))
    with pytest.raises(BadModel, match="too large"):
        load_head(path)
    with pytest.raises(BadModel, match="is not a semantic head"):
        load_head(tmp_path / "gone.npz")


def test_a_pickle_is_never_loaded(head: Head, tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    np.savez(path, card=np.array([{"format": "x"}], dtype=object))
    with pytest.raises(BadModel, match="is not a semantic head"):
        load_head(path)


def test_the_shipped_head_is_small_and_says_where_it_is_from(head: Head) -> None:
    save = Path("src/floe/privacy/semantic_data/head.npz")
    if save.is_file():
        assert save.stat().st_size < 200_000
    assert {"made", "seed", "encoder", "windows", "licence", "method"} <= set(head.card)


def test_the_gate_keeps_a_private_matter_here(encoder: StaticEmbedding) -> None:
    for policy in ("strict", "balanced"):
        config = PrivacyConfig(ner="off", policy=policy)  # type: ignore[arg-type]
        gate = build_gate(config, None, encoder=encoder)
        assert gate.detector_names == ("rules", "semantic")
        verdict = gate.inspect([("user", PRIVATE[0])])
        assert (verdict.action, verdict.findings[0].entity) == ("local", "PRIVATE_MATTER")
        assert "sister" not in verdict.reason
        assert gate.inspect([("user", GENERAL[0])]).may_leave


def test_the_gate_closes_when_the_score_fails(head: Head) -> None:
    gate = build_gate(PrivacyConfig(ner="off"), None, encoder=FakeEncoder(head, float("nan")))
    verdict = gate.inspect([("user", GENERAL[0])])
    assert verdict.action == "local"
    assert "semantic" in verdict.reason


def test_off_auto_and_on(encoder: StaticEmbedding, caplog: pytest.LogCaptureFixture) -> None:
    off = build_gate(PrivacyConfig(ner="off", semantic="off"), None, encoder=encoder)
    assert off.detector_names == ("rules",)
    assert off.inspect([("user", PRIVATE[0])]).may_leave
    auto = build_gate(PrivacyConfig(ner="off"), None)
    assert auto.detector_names == ("rules",)
    with pytest.raises(Missing, match="floe pull wordllama-256"):
        build_gate(PrivacyConfig(ner="off", semantic="on"), None)
    with caplog.at_level(logging.DEBUG):
        build_gate(PrivacyConfig(ner="off", semantic="on"), None, encoder=encoder).inspect(
            [("user", PRIVATE[0])]
        )
    assert "sister" not in caplog.text


def test_a_private_matter_is_local_unless_somebody_says_otherwise() -> None:
    for name in ("strict", "balanced"):
        policy = policy_of(PrivacyConfig(policy=name))  # type: ignore[arg-type]
        assert policy.treatment("PRIVATE_MATTER") == "local"
    looser = policy_of(PrivacyConfig(entities={"PRIVATE_MATTER": "allow"}))
    assert looser.treatment("PRIVATE_MATTER") == "allow"


def test_a_threshold_outside_zero_and_one_stops_the_start() -> None:
    from floe.core.config import Config
    from floe.core.config_rules import check

    for value in (-0.1, 1.0):
        with pytest.raises(BadConfig, match=r"privacy\.semantic_threshold"):
            check(Config(privacy=PrivacyConfig(semantic_threshold=value)))
