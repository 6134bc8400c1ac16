"""Addresses of US forces abroad."""

from __future__ import annotations

import pytest

from floe.privacy.detector import RuleDetector


@pytest.mark.parametrize(
    "address",
    [
        "PSC 7951, Box 9972\nAPO AA 69974",
        "Unit 5146 Box 1772\nDPO AE 91410",
        "uscgc aslakhanov\nfpo ae 44941",
        "USS Kidd\nFPO AP 96667-1234",
        "APO AE 09112",
    ],
)
def test_an_address_abroad_is_found_whole(address: str) -> None:
    text = f"Please send it to {address}."
    spans = RuleDetector().find(text)
    assert [text[s.start : s.end] for s in spans if s.entity == "STREET_ADDRESS"] == [address]


@pytest.mark.parametrize("text", ["the apo ae study", "APO AE 123", "unit 12345 box 12"])
def test_what_is_none_is_not_found(text: str) -> None:
    assert [s for s in RuleDetector().find(text) if s.entity == "STREET_ADDRESS"] == []
