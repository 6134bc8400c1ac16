"""Names and addresses: what counts, and the real model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadModel, Missing
from floe.privacy.base import Detector
from floe.privacy.ner import NerDetector, NerFiles, windows
from floe.privacy.ner_names import Labelled, common_words, is_exercise, known_names, known_places
from floe.privacy.ner_spans import spans_of


def labelled(text: str, *marks: tuple[str, str]) -> list[Labelled]:
    """Tokens for (piece of text, label), each searched behind the one before."""
    tokens, at = [], 0
    for piece, label in marks:
        start = text.index(piece, at)
        at = start + len(piece)
        tokens.append(Labelled(label=label, score=0.9, start=start, end=at))
    return tokens


def found(text: str, *marks: tuple[str, str]) -> list[tuple[str, str, bool]]:
    spans = spans_of(text, labelled(text, *marks), threshold=0.5, recogniser="r")
    return [(s.entity, text[s.start : s.end], s.score >= 0.5) for s in spans]


GIVEN, SURNAME = "B-GIVEN_NAME", "B-SURNAME"
SPANS = [
    ("Natalia called", [("Natalia", GIVEN)], [("PERSON", "Natalia", True)]),
    (
        "Natalia sold 48 clips and half as many. How many?",
        [("Natalia", GIVEN)],
        [("PERSON", "Natalia", False)],
    ),
    (
        "How many mg does Keller get, 2 times 30?",
        [("Keller", SURNAME)],
        [("PERSON", "Keller", True)],
    ),
    (
        "My name is Ann. How many are 2 and 3?",
        [("Ann", GIVEN)],
        [("PERSON", "Ann", True)],
    ),
    ("Ellis Group", [("Ellis", SURNAME)], [("PERSON", "Ellis", False)]),
    ("I work for Kohler", [("Kohler", SURNAME)], [("PERSON", "Kohler", False)]),
    (
        "Wolfram Research",
        [("Wolfram", GIVEN), ("Research", SURNAME)],
        [("PERSON", "Wolfram Research", False)],
    ),
    ("Use JSON here", [("JSON", GIVEN)], []),
    ("Try it with integer", [("integer", GIVEN)], []),
    ("WARN netif_scan", [("netif_scan", GIVEN)], []),
    ("ask John Miller", [("John", GIVEN), ("Miller", SURNAME)], [("PERSON", "John Miller", True)]),
    (
        "Faina D. Yefremova",
        [("Faina", GIVEN), ("D", GIVEN), ("Yefremova", SURNAME)],
        [("PERSON", "Faina D. Yefremova", True)],
    ),
    ("John, Mary and Ann", [("John", GIVEN), ("Mary", GIVEN)], [("PERSON", "John, Mary", True)]),
    ("my name is rubija", [("rub", GIVEN), ("ija", GIVEN)], [("PERSON", "rubija", True)]),
    ("patient Smith", [("Smith", SURNAME)], [("PERSON", "Smith", True)]),
    ("Schwarz flew", [("Schwarz", SURNAME), ("fl", "I-SURNAME")], [("PERSON", "Schwarz", True)]),
    ("in Paris", [("Paris", "B-CITY")], [("GPE", "Paris", False)]),
    (
        "5 Elm Street, Springfield",
        [
            ("5", "B-BUILDING_NUMBER"),
            ("Elm", "B-STREET_NAME"),
            ("Street", "I-STREET_NAME"),
            ("Spring", "B-CITY"),
            ("field", "B-CITY"),
        ],
        [("STREET_ADDRESS", "5 Elm Street, Springfield", True)],
    ),
    (
        "Austin, Texas",
        [("Austin", "B-CITY"), ("Texas", "B-STATE")],
        [("GPE", "Austin, Texas", False)],
    ),
    ("ZIP: 3520", [("3520", "B-ZIP_CODE")], [("ZIP_CODE", "3520", True)]),
    ("with 6000 more", [("6000", "B-ZIP_CODE")], [("ZIP_CODE", "6000", False)]),
    ("my id 12-3456", [("12-3456", "B-GOVERNMENT_ID")], [("GOVERNMENT_ID", "12-3456", True)]),
    ("order 12-3456", [("12-3456", "B-GOVERNMENT_ID")], [("GOVERNMENT_ID", "12-3456", False)]),
    (
        "passport 7b12345c67d89e01",
        [("12345", "B-PASSPORT")],
        [("PASSPORT", "12345", False)],
    ),
    ("index 44 21 23 45", [("44 21 23 45", "B-PHONE")], [("PHONE_NUMBER", "44 21 23 45", True)]),
    ("took 44212345 ms", [("44212345", "B-PHONE")], [("PHONE_NUMBER", "44212345", False)]),
    ("Call 44212345", [("44212345", "B-PHONE")], [("PHONE_NUMBER", "44212345", True)]),
    ("A list[NDArray]", [("NDArray", GIVEN)], []),
    ("Ask McCoy", [("McCoy", SURNAME)], [("PERSON", "McCoy", True)]),
    ("At self.maria", [("maria", GIVEN)], []),
    ("To Nairobi", [("Nairobi", GIVEN)], [("GPE", "Nairobi", False)]),
    ("To Osaka", [("Osaka", "O")], [("GPE", "Osaka", False)]),
    ("请把Good翻译", [("请把", GIVEN)], []),
    ("git 提交", [("git", GIVEN)], []),
    (
        "He shovels driveways",
        [("shovels", "B-BUILDING_NUMBER"), ("driveways", "B-STREET_NAME")],
        [("STREET_ADDRESS", "shovels driveways", False)],
    ),
    ("my id 12", [("12", "B-GOVERNMENT_ID")], [("GOVERNMENT_ID", "12", False)]),
    ("see http://x.uy", [("http://x.uy", "B-URL")], [("URL", "http://x.uy", False)]),
    ("mail a@b.co", [("a@b.co", "B-EMAIL")], [("EMAIL_ADDRESS", "a@b.co", True)]),
    ("nothing", [("nothing", "O")], []),
]


@pytest.mark.parametrize(("text", "marks", "spans"), SPANS)
def test_what_counts(
    text: str, marks: list[tuple[str, str]], spans: list[tuple[str, str, bool]]
) -> None:
    assert found(text, *marks) == spans


def test_labels_below_the_threshold_are_dropped() -> None:
    tokens = labelled("John Miller", ("John", GIVEN), ("Miller", SURNAME))
    assert spans_of("John Miller", tokens, threshold=0.95, recogniser="r") == []


@pytest.mark.parametrize(
    ("text", "word", "name", "place", "is_found"),
    [
        ("Unlike the Jensen novel", "Jensen", 0.02, 0.0, True),  # known
        ("Unlike the Jensen novel", "Jensen", 0.005, 0.0, False),
        ("Unlike the Sokolovev novel", "Sokolovev", 0.001, 0.0, True),  # by its ending
        ("Unlike the Xqzzyw novel", "Xqzzyw", 0.06, 0.0, True),  # unknown, in two tokens
        ("Unlike the Table novel", "Table", 0.2, 0.0, False),  # an ordinary word
        ("unlike the jensen novel", "jensen", 0.2, 0.0, True),
        ("Unlike the jensen novel", "jensen", 0.2, 0.0, False),
        ("unlike the jensen novel", "jensen", 0.05, 0.0, False),
        ("He turned 22", "He", 0.4, 0.0, False),
    ],
)
def test_a_known_or_rare_word_needs_less_of_the_model(
    text: str, word: str, name: float, place: float, is_found: bool
) -> None:
    start = text.index(word)
    middle = start + len(word) // 2
    tokens = [
        Labelled(label="O", score=0.4, start=a, end=b, name=name, place=place)
        for a, b in ((start, middle), (middle, start + len(word)))
    ]
    spans = spans_of(text, tokens, threshold=0.5, recogniser="r")
    expected = [("PERSON", word)] if is_found else []
    assert [(s.entity, text[s.start : s.end]) for s in spans] == expected


def test_the_lists_of_names_and_words_are_apart() -> None:
    assert {"jensen", "maria"} <= known_names()
    assert {"table", "kafka"} <= common_words()
    assert {"uruguay", "nairobi"} <= known_places()
    assert not known_names() & (common_words() | known_places())


def test_a_likely_place_is_reported_and_points_at_nobody() -> None:
    token = Labelled(label="O", score=0.6, start=3, end=9, name=0.1, place=0.3)
    (span,) = spans_of("In Qalvik", [token], threshold=0.5, recogniser="r")
    assert (span.entity, span.score < 0.5) == ("GPE", True)


def test_a_text_in_a_script_unknown_to_the_model_is_not_read(rampart_files: NerFiles) -> None:
    detector = NerDetector(files=rampart_files)
    detector._session = None  # reading would fail
    assert detector.find("请写一首关于秋天的七言绝句。") == []
    assert detector.find("12345") == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Ann has 3 pens and buys four. How many has she?", True),
        ("Ann has 3 pens and buys four. What now?", False),
        ("How many sisters has Ann?", False),
        ("How many pens, 3 or 4, Ann said.", False),
    ],
)
def test_a_word_problem_asks_and_counts(text: str, is_one: bool) -> None:
    assert is_exercise(text) == is_one


_TOKENS = st.lists(
    st.tuples(
        st.sampled_from(
            ["O", GIVEN, "I-SURNAME", "B-CITY", "B-ZIP_CODE", "I-PHONE", "B-URL", "junk"]
        ),
        st.floats(0, 1),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    max_size=20,
)


@given(_TOKENS, st.text(alphabet="aB1 .,-'\n中", min_size=160, max_size=160))
def test_any_labels_give_sound_spans(rows: list[tuple[str, float, int, int]], text: str) -> None:
    tokens, at = [], 0
    for label, score, gap, length in rows:
        tokens.append(Labelled(label=label, score=score, start=at + gap, end=at + gap + length))
        at += gap + length
    for span in spans_of(text, tokens, threshold=0.5, recogniser="r"):
        assert 0 <= span.start < span.end <= len(text)
        assert 0 <= span.score <= 1


@given(st.integers(0, 2000))
def test_windows_cover_every_token_once(n_tokens: int) -> None:
    taken: list[int] = []
    for start, end in windows(n_tokens):
        assert end - start <= 128
        taken += range(start + 16 if start else 0, end - 16 if end < n_tokens else end)
    assert taken == list(range(n_tokens))


def test_the_real_model_finds_names_and_addresses(rampart_files: NerFiles) -> None:
    detector: Detector = NerDetector(files=rampart_files)
    text = "My son John Miller lives at 5 Elm Street, Springfield."
    assert [(s.entity, text[s.start : s.end]) for s in detector.find(text) if s.score >= 0.5] == [
        ("PERSON", "John Miller"),
        ("STREET_ADDRESS", "5 Elm Street, Springfield"),
    ]
    hidden = text.replace("Miller", "Mil\u200bler")
    assert any("Mil\u200bler" in hidden[s.start : s.end] for s in detector.find(hidden))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "\ud800 lone",
        "\U0001f600" * 20,
        "C7 K2 A1B2",
        "1650000000.00 -1.25",
        "\n".join(str(1234567 + 7919 * i) for i in range(40)),
        "04/17 10:02:11 WARN netif_scan: index 3, device eth0",
        "What is the capital of France?",
    ],
)
def test_b04_b05_the_real_model_names_no_person_in_numbers_and_logs(
    rampart_files: NerFiles, text: str
) -> None:
    spans = NerDetector(files=rampart_files).find(text)
    assert [s for s in spans if s.entity == "PERSON" and s.score >= 0.5] == []


def test_the_real_model_reads_long_texts_in_windows(rampart_files: NerFiles) -> None:
    detector = NerDetector(files=rampart_files)
    filler = "The river runs through the valley and turns the old mill. " * 40
    text = filler + "Ask John Miller. " + filler
    (span,) = [s for s in detector.find(text) if s.score >= 0.5]
    assert text[span.start : span.end] == "John Miller"


def test_values_that_are_not_finite_are_refused(
    rampart_files: NerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = NerDetector(files=rampart_files)

    class Broken:
        def run(self, names: object, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.full((1, feed["input_ids"].shape[1], 35), np.nan, dtype=np.float32)]

    monkeypatch.setattr(detector, "_session", Broken())
    with pytest.raises(ValueError, match="not finite"):
        detector.find("some other text")


@pytest.fixture
def broken_files(tmp_path: Path) -> NerFiles:
    files = NerFiles(
        model=tmp_path / "model.onnx",
        tokenizer=tmp_path / "tokenizer.json",
        config=tmp_path / "config.json",
    )
    for path in (files.model, files.tokenizer, files.config):
        path.write_text("{}")
    return files


def test_a_broken_model_is_refused(broken_files: NerFiles) -> None:
    with pytest.raises(BadModel, match=r"cannot be loaded \(KeyError\).*floe pull"):
        NerDetector(files=broken_files)


def test_a_missing_file_says_how_to_get_it(broken_files: NerFiles) -> None:
    broken_files.tokenizer.unlink()
    with pytest.raises(Missing, match=r"tokenizer\.json is not there\. Get it with: floe pull"):
        NerDetector(files=broken_files)


def test_a_missing_runtime_says_how_to_get_it(
    broken_files: NerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Missing, match=r"needs onnxruntime\. Install it with: pip install"):
        NerDetector(files=broken_files)


def test_a_tokenizer_of_another_model_is_refused(rampart_files: NerFiles, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    text = rampart_files.tokenizer.read_text(encoding="utf-8")
    other.write_text(text.replace("[SEP]", "[END]"), encoding="utf-8")
    files = NerFiles(model=rampart_files.model, tokenizer=other, config=rampart_files.config)
    with pytest.raises(BadModel, match=r"lacks \[CLS\] or \[SEP\]"):
        NerDetector(files=files)
