"""Numbers cut by line ends, emoji and odd signs, and columns of figures that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.privacy.detector import RuleDetector
from floe.privacy.joining import joined
from floe.privacy.normalise import normalise

DETECTOR = RuleDetector()
ROWS = [
    ("CREDIT_CARD", "card 4111{0}1111{0}1111{0}1111 ok"),
    ("PHONE_NUMBER", "手机 138{0}1234{0}5678，谢谢"),
    ("PHONE_NUMBER", "call me on 415{0}555{0}2671"),
    ("US_SSN", "SSN 219{0}09{0}9999."),
    ("CN_RESIDENT_ID", "号 110105{0}19491231{0}002X"),
]
_CUTS = ["\n", "\r\n", " \n", "😀", " 😀 ", " • ", "_", " / ", "\u3000|\u3000"]


def found(text: str) -> list[tuple[str, str]]:
    return [(s.entity, text[s.start : s.end]) for s in DETECTOR.find(text) if s.score >= 0.5]


@pytest.mark.parametrize("cut", _CUTS)
@pytest.mark.parametrize(("entity", "text"), ROWS)
def test_a_number_cut_in_its_groups_is_found_whole(entity: str, text: str, cut: str) -> None:
    whole = text.format(cut)
    last = whole.rindex(cut) + len(cut)
    assert [e for e, _ in found(whole)] == [entity]
    value = found(whole)[0][1]
    assert value.count(cut) == text.count("{0}") and whole[last : last + 3] in value


def test_digit_by_digit() -> None:
    text = "1 1 0 1 0 5 1 9 4 9 1 2 3 1 0 0 2 X"
    assert found(text) == [("CN_RESIDENT_ID", text)]
    assert found("card 4|1|1|1|1|1|1|1|1|1|1|1|1|1|1|1")[0][0] == "CREDIT_CARD"


@pytest.mark.parametrize(
    "text",
    [
        "4111\n1111\n1111\n1111",
        "year\n2021\n2022\n2023\n2024",
        "call the server at 192.168.10.10 or 10.1.2.3",
        "version 1.2.3.4 of 2024/01/02, telephone rates 12.50\n13.75\n14.20",
        "110105\n19491231\n0021",
    ],
)
def test_figures_without_a_word_that_names_them_stay_apart(text: str) -> None:
    assert [f for f in found(text) if f[0] != "IP_ADDRESS"] == []


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="0123456789X \n.😀/a卡card", max_size=60))
def test_what_is_joined_maps_back(text: str) -> None:
    copy = normalise("card " + text)
    other = joined(copy)
    if other is None:
        return
    assert len(other.text) == len(other.starts) == len(other.ends)
    places = list(zip(other.starts, other.ends, strict=True))
    assert places == sorted(places)
    for char, (start, end) in zip(other.text, places, strict=True):
        assert char in normalise(("card " + text)[start:end]).text
