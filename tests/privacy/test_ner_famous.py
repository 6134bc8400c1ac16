"""Names of history are nobody's secret; a part of one, or one that introduces a person, is."""

from __future__ import annotations

import pytest

from floe.privacy.ner_famous import _NAMES, is_famous
from floe.privacy.ner_names import Labelled
from floe.privacy.ner_spans import spans_of


def scores(text: str, *names: str) -> list[float]:
    tokens = [
        Labelled(
            label="B-GIVEN_NAME",
            score=0.9,
            name=0.9,
            start=text.index(name),
            end=text.index(name) + len(name),
        )
        for name in names
    ]
    return [s.score for s in spans_of(text, tokens, threshold=0.3, recogniser="t")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("When did Marie Curie discover radium?", "Marie"),
        ("Who was Napoleon Bonaparte?", "Napoleon Bonaparte"),
        ("Write on Alan Turing's work.", "Alan Turing's"),
    ],
)
def test_the_dead_of_history_do_not_count(text: str, name: str) -> None:
    assert all(score < 0.5 for score in scores(text, name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Marie has a rash, and Curie is a unit", "Marie"),
        ("I am Napoleon Bonaparte", "Napoleon Bonaparte"),
        ("patient: Alan Turing", "Alan Turing"),
        ("Marie Curietti called", "Marie Curietti"),
        ("Marie Curie and Paul Brandt called", "Paul Brandt"),
    ],
)
def test_other_people_do(text: str, name: str) -> None:
    assert any(score >= 0.5 for score in scores(text, name))


def test_only_whole_names_are_listed() -> None:
    assert all(" " in name for name in _NAMES)
    text = "x Ada Lovelace y"
    assert [is_famous(text, 2, 5), is_famous(text, 0, 5), is_famous(text, 2, 16)] == [
        True,
        False,
        False,
    ]
