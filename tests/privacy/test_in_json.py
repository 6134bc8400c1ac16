"""Sentences in JSON are read without the JSON, at the same places."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.privacy.base import Span
from floe.privacy.in_json import InJson, strings_of


class Sentences:
    """Finds a capitalised pair of words, unless quotes or braces are about."""

    name = "sentences"

    def __init__(self) -> None:
        self.read: list[str] = []

    def find(self, text: str) -> Sequence[Span]:
        self.read.append(text)
        if re.search(r'[{}]|(?<!\\)"', text):
            return []
        return [
            Span(entity="PERSON", start=m.start(), end=m.end(), score=0.9, recogniser="t")
            for m in re.finditer(r"[A-Z]\w+ [A-Z]\w+", text)
        ]


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "Write to Ada King now.", "n": 3} Explain this.',
        'result: ["x", "Ada King"]',
        '{"a": {"b": "say \\"hi\\" to Ada King"}}',
        '{"name":"Ada King"}',
    ],
)
def test_a_name_in_a_string_is_found_at_its_place(text: str) -> None:
    found = [s for s in InJson(Sentences()).find(text) if text[s.start : s.end] == "Ada King"]
    assert len(found) == 1
    assert InJson(Sentences()).name == "sentences"


@pytest.mark.parametrize("text", ["Ada King", 'he said "Ada King" loudly', "a: b, [c]", ""])
def test_text_without_json_is_read_once(text: str) -> None:
    inner = Sentences()
    InJson(inner).find(text)
    assert inner.read == [text]


VALUE = st.recursive(
    st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(VALUE, st.text(st.sampled_from("ab {}[]"), max_size=5))
def test_every_string_stands_where_it_stood(value: object, around: str) -> None:
    text = around + json.dumps(value) + around
    copy = strings_of(text)
    assert len(copy) == len(text)
    assert all(a in (b, " ") for a, b in zip(copy, text, strict=True))
    for literal in re.finditer(r'"((?:[^"\\]|\\.)*)"', text):
        assert copy[literal.start(1) : literal.end(1)] == literal[1]
