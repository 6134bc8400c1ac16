"""The detection copy and its way back."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.privacy.normalise import normalise

_TEXT = st.text(
    alphabet=st.sampled_from("ab1９٣\u0301\u200b\u00adаéﬁ㏂ \n中한\u1100\u1161\x00\ud83d\ud800＠"),
    max_size=30,
) | st.text(max_size=30)


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ("plain text, 12", "plain text, 12"),
        ("a\u200bb\u00adc\ufeffd", "abcd"),
        ("a\x00b\x1bc", "abc"),
        ("bob＠test．org", "bob@test.org"),
        ("1\u03032\u20e33", "123"),
        ("e\u0301", "é"),
        ("١۲३４𝟝", "12345"),
        ("раураl", "paypal"),
        ("1–2—3−4", "1-2-3-4"),
        ("\u3000x\u00a0y", " x y"),
        ("中文 张伟", "中文 张伟"),
    ],
)
def test_copy(text: str, copy: str) -> None:
    assert normalise(text).text == copy


def test_without_folding_letters_stay() -> None:
    assert normalise("Анна\u200b ４", fold=False).text == "Анна 4"


@given(_TEXT)
def test_b25_every_span_of_the_copy_lies_in_the_original(text: str) -> None:
    copy = normalise(text)
    assert len(copy.starts) == len(copy.ends) == len(copy.text)
    for i in range(len(copy.text)):
        start, end = copy.original(i, i + 1)
        assert 0 <= start < end <= len(text)
        assert copy.text[i] in normalise(text[start:end]).text
    assert list(copy.starts) == sorted(copy.starts)
    assert list(copy.ends) == sorted(copy.ends)


@given(_TEXT)
def test_nothing_hidden_and_no_foreign_digit_is_left(text: str) -> None:
    for char in normalise(text).text:
        assert unicodedata.category(char) not in ("Cf",)
        assert unicodedata.decimal(char, None) is None or char in "0123456789"


@given(_TEXT)
def test_the_copy_is_that_of_its_clusters(text: str) -> None:
    """The slow twin: cut into a base and its marks by hand, normalise each alone."""
    clusters: list[str] = []
    for char in text:
        joins = unicodedata.category(char)[0] == "M" or (
            unicodedata.category(char) in ("Cf", "Cc") and char not in "\t\n\v\f\r"
        )
        if clusters and (joins or char in "\u115f\u1160\u3164\uffa0"):
            clusters[-1] += char
        else:
            clusters.append(char)
    assert normalise(text).text == "".join(normalise(c).text for c in clusters)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_plain_text_is_its_own_copy(text: str) -> None:
    copy = normalise(text)
    assert copy.text == text
    assert [copy.original(i, i + 1) for i in range(len(text))] == [
        (i, i + 1) for i in range(len(text))
    ]
