"""What other tools got wrong, by the id in the bug log; B07, B08 and B11 are beside their rules."""

from __future__ import annotations

import base64
import json
import urllib.parse

import pytest

from floe.privacy.detector import RuleDetector
from floe.privacy.policy import ENTITIES

DETECTOR = RuleDetector()


def found(text: str) -> list[tuple[str, str]]:
    return [(s.entity, text[s.start : s.end]) for s in DETECTOR.find(text) if s.score >= 0.5]


@pytest.mark.parametrize(
    "text",
    [
        "AN INTRODUCTORY NOTE ON MARKERS",
        "INTERVENTIONS",
        "C7",
        "K2",
        "license C7 and K2",
        "driver license INTERVENTIONS",
        "D1234567 F162823540116",
    ],
)
def test_b01_a_driving_licence_needs_its_word_and_digits(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "public notice m2 1234567",
        "replicated v3 D1234567",
        "splice D1234567, police D1234567, dln D1234567x",
        "integrity sha512-LICm2kq3aPz9Yw4vF0bN8rT6uX1cE5hJ7dS2gK4lQ9oW3yR8tU6iP0aZ1xC5vB7nM2q==",
        "compassport 340020013",
        "einstein 12-3456789, seven 12-3456789, nipper 1234563218",
        "sha256:1d6f49d55ac2dc0b2ba1dabc2d4d9f4d4e8b9a1d6d8d41d8cd98f00b204e9800 license",
    ],
)
def test_b02_context_words_are_whole(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(str(1234567 + 7919 * i) for i in range(40)),
        "04/17 10:02:11 WARN netif_scan: index 3, device eth0",
        "2026-11-29 17:17:35,123 INFO worker-7 took 1234 ms, queue 12/64",
    ],
)
def test_b04_numbers_and_log_lines_are_nobody(text: str) -> None:
    assert found(text) == []


def test_b05_a_signed_number_is_nothing() -> None:
    assert DETECTOR.find("1650000000.00 -1.25") == []


def test_b13_a_cloud_trail_record_gives_no_finding() -> None:
    record = {
        "eventVersion": "1.08",
        "userIdentity": {"type": "AssumedRole", "accountId": "123456789012"},
        "eventTime": "2026-11-29T17:17:35Z",
        "requestID": "c7a4e1d2-90ab-4cde-8f01-23456789abcd",
        "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "recipientAccountId": "210987654321",
    }
    assert found(json.dumps(record)) == []
    assert found(json.dumps(record, indent=2)) == []


@pytest.mark.parametrize(
    "hidden", ["\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e", "\U000e0041"]
)
def test_b25_no_format_character_hides_a_value(hidden: str) -> None:
    for value, entity in (
        ("4111111111111111", "CREDIT_CARD"),
        ("11010519491231002X", "CN_RESIDENT_ID"),
        ("bob@test.org", "EMAIL_ADDRESS"),
    ):
        text = hidden.join(value)
        assert found(f"is {text} it") == [(entity, text)]


def test_b26_look_alikes_and_wide_letters_are_read() -> None:
    for text in (
        "Ｇ570931（7）",
        "１１０１０５１９４９１２３１００２Ｘ",
        "ＧＢ８２ＷＥＳＴ１２３４５６９８７６５４３２",
    ):
        assert [v for _, v in found(f"号码{text}。")] == [text]


@pytest.mark.parametrize("zero", ["٠", "۰", "०", "０", "𝟎", "০", "๐", "᠐"])
def test_b28_a_resident_id_in_any_digits_is_found(zero: str) -> None:
    text = "".join(chr(ord(zero) + int(c)) for c in "310101199003077771")
    assert found(f"身份证{text}。") == [("CN_RESIDENT_ID", text)]


@pytest.mark.parametrize("mark", ["\u0303", "\u20e3", "\u0336", "\ufe0f"])
def test_b29_marks_between_digits_break_nothing(mark: str) -> None:
    text = mark.join("4111111111111111")
    assert found(f"card {text} ok") == [("CREDIT_CARD", text)]


@pytest.mark.parametrize(
    ("text", "entity", "value"),
    [
        ("明日のmeetingについて、passportはTR1234567です", "PASSPORT", "TR1234567"),
        ("請把member ID W234567890給我", "INSURANCE_NUMBER", "W234567890"),
        ("我的routing number是021000021谢谢", "ABA_ROUTING_NUMBER", "021000021"),
        ("请查NPI是1234567893这位医生", "US_NPI", "1234567893"),
    ],
)
def test_b49_words_work_between_scripts(text: str, entity: str, value: str) -> None:
    assert (entity, value) in found(text)


@pytest.mark.parametrize(
    ("entity", "value"),
    [
        ("CN_RESIDENT_ID", "11010519491231002X"),
        ("CREDIT_CARD", "4111111111111111"),
        ("API_KEY", "AKIAIOSFODNN7EXAMPLE"),
        ("IBAN_CODE", "DE89370400440532013000"),
    ],
)
def test_encoded_once_is_found_as_it_stands(entity: str, value: str) -> None:
    whole = f"it is {value}, ok"
    for text in (
        urllib.parse.quote(whole, safe=""),
        "".join(f"%{b:02X}" for b in whole.encode()),
        base64.b64encode(whole.encode()).decode(),
        base64.urlsafe_b64encode(whole.encode()).decode().rstrip("="),
        "".join(f"&#x{ord(c):x};" for c in whole),
        "".join(f"\\u{ord(c):04x}" for c in whole),
    ):
        assert entity in [e for e, _ in found(text)], text


def test_every_entity_a_rule_reports_has_a_policy() -> None:
    from tests.privacy.test_rules import ROWS as FIRST
    from tests.privacy.test_rules_world import ROWS as WORLD

    reported = {s.entity for row in [*FIRST, *WORLD] for s in DETECTOR.find(row[1])}
    assert reported <= ENTITIES
