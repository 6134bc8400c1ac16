"""Long texts of one kind end: a pattern that backtracks without end would hang here.

How time grows with length is measured by `scripts/profile_privacy.py --growth`.
"""

from __future__ import annotations

import pytest
from scripts.profile_privacy import UNITS

from floe.privacy.detector import RuleDetector
from floe.privacy.rules import ALL

DETECTOR = RuleDetector()
_CHARS = 3_000


@pytest.mark.parametrize("unit", UNITS)
def test_b13_a_long_text_of_one_kind_ends_in_sound_spans(unit: str) -> None:
    text = (unit * _CHARS)[:_CHARS]
    for rule in ALL:
        assert all(0 <= s.start < s.end <= len(text) for s in rule.find(text)), rule.name


def test_a_long_text_of_everything_is_read_whole() -> None:
    text = "".join(UNITS) * 20 + " 4111 1111 1111 1111"
    assert any(s.entity == "CREDIT_CARD" for s in DETECTOR.find(text))
