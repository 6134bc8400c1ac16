"""Files of any length, read in pieces: the places are those of the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.sections import PrivacyConfig
from floe.privacy import scan as module
from floe.privacy.base import Span
from floe.privacy.detector import RuleDetector
from floe.privacy.policy import STRICT, policy_of
from floe.privacy.scan import Place, scan


def find(text: str) -> list[Span]:
    """Numbers of four digits that stand alone."""
    return [
        Span(entity="US_SSN", start=m.start(), end=m.end(), score=0.9, recogniser="four")
        for m in re.finditer(r"(?<!\d)\d{4}(?!\d)", text)
    ]


def places(pieces: list[str]) -> list[tuple[int, int, str]]:
    return [(p.line, p.column, p.text) for p in scan(pieces, find, STRICT)]


def slow_twin(text: str) -> list[tuple[int, int, str]]:
    """Each match's line and column, counted from the beginning of the text."""
    out = []
    for span in find(text):
        before = text[: span.start]
        line = before.count("\n") + 1
        column = span.start - (before.rfind("\n") + 1) + 1
        out.append((line, column, text[span.start : span.end]))
    return out


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(["1234", "5678", "12345", "x", " ", "\n", "王", "words "]), max_size=60
    ),
    st.lists(st.integers(1, 30), max_size=20),
)
def test_places_are_those_of_the_whole_text(parts: list[str], cuts: list[int]) -> None:
    text, pieces, at = "".join(parts), [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    pieces.append(text[at:])
    before = module.PIECE_CHARS, module._OVERLAP_CHARS
    module.PIECE_CHARS, module._OVERLAP_CHARS = 16, 6
    try:
        assert places(pieces) == slow_twin(text)
    finally:
        module.PIECE_CHARS, module._OVERLAP_CHARS = before


def test_a_value_across_a_cut_is_found_once_with_its_context() -> None:
    line = "x" * 90 + "\n"
    text = line * 89 + "the password is hunter22 and 4111 1111 1111 1111\n" + line * 200
    for shift in range(0, 120, 7):
        found = list(scan(["y" * shift + "\n", text], RuleDetector().find, STRICT))
        assert [(p.line, p.column, p.entity) for p in found] == [
            (91, 17, "PASSWORD"),
            (91, 30, "CREDIT_CARD"),
        ]


def test_memory_is_bounded_by_the_piece() -> None:
    longest = 0

    def watch(text: str) -> list[Span]:
        nonlocal longest
        longest = max(longest, len(text))
        return find(text)

    def pieces() -> Iterator[str]:
        for n in range(20):
            yield f"{n + 1000} " * 2000

    assert sum(1 for _ in scan(pieces(), watch, STRICT)) == 40_000
    assert longest < 4 * module.PIECE_CHARS


@pytest.mark.parametrize(
    ("settings", "action"),
    [
        ({}, "local"),
        ({"policy": "balanced"}, "mask"),
        ({"entities": {"US_SSN": "allow"}}, "allow"),
        ({"scores": {"US_SSN": 0.95}}, None),
    ],
)
def test_the_policy_says_what_a_place_means(settings: dict[str, object], action: str) -> None:
    policy = policy_of(PrivacyConfig(**settings))  # type: ignore[arg-type]
    found = list(scan(["a\nb 1234"], find, policy))
    expected = Place(
        line=2,
        column=3,
        chars=4,
        entity="US_SSN",
        score=0.9,
        recogniser="four",
        action=action,  # type: ignore[arg-type]
        text="1234",
    )
    assert found == ([expected] if action else [])


def test_a_passage_hides_no_value_in_it() -> None:
    def with_passage(text: str) -> list[Span]:
        whole = Span(
            entity="PRIVATE_MATTER", start=0, end=len(text), score=0.8, recogniser="semantic"
        )
        return [whole, *find(text)]

    lines = "".join(f"{n + 1000} and so on\n" for n in range(3000))
    found = [p for p in scan([lines], with_passage, STRICT) if p.entity != "PRIVATE_MATTER"]
    assert [p.line for p in found] == list(range(1, 3001))
