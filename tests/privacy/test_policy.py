"""Treatments by entity: strict by default, and a typo stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from floe.core.config import PrivacyConfig, load_config
from floe.core.errors import BadConfig
from floe.privacy import ner_spans
from floe.privacy.base import Span
from floe.privacy.build import build_gate
from floe.privacy.deadline import TooLateError
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.policy import ALWAYS_LOCAL, ENTITIES, MASKED_WHEN_BALANCED, STRICT, policy_of
from floe.privacy.rules import ALL

PERSONAL = "call me on +1 415 555 2671 or write to ada.king@example.org"
CARD = "my card is 4111 1111 1111 1111"


def gate_of(**settings: object) -> Gate:
    return build_gate(PrivacyConfig(ner="off", **settings), None)  # type: ignore[arg-type]


def test_every_entity_of_the_shipped_detectors_has_a_treatment() -> None:
    by_rules = {rule.entity for rule in ALL if hasattr(rule, "entity")}
    by_model = set(ner_spans._ENTITIES.values()) | set(ner_spans._ALONE.values())
    assert by_rules | by_model <= ENTITIES
    assert not MASKED_WHEN_BALANCED & ALWAYS_LOCAL


def test_strict_is_the_default_and_keeps_everything() -> None:
    assert PrivacyConfig().policy == "strict"
    strict = policy_of(PrivacyConfig())
    assert {strict.treatment(entity) for entity in [*ENTITIES, "NEW"]} == {"local"}
    assert {STRICT.treatment(entity) for entity in ENTITIES} == {"local"}
    assert gate_of().inspect([("prompt", PERSONAL)]).action == "local"


def test_balanced_masks_who_and_keeps_what_opens_doors() -> None:
    balanced = policy_of(PrivacyConfig(policy="balanced"))
    for entity in ("PERSON", "EMAIL_ADDRESS", "PHONE_NUMBER", "STREET_ADDRESS", "US_SSN"):
        assert balanced.treatment(entity) == "mask"
    for entity in ("API_KEY", "CREDIT_CARD", "IBAN_CODE", "PASSWORD", "PRIVATE_KEY", "NEW"):
        assert balanced.treatment(entity) == "local"
    gate = gate_of(policy="balanced")
    verdict = gate.inspect([("prompt", PERSONAL)])
    assert (verdict.action, verdict.may_leave) == ("mask", False)
    assert verdict.reason == "found EMAIL_ADDRESS, PHONE_NUMBER; masked"
    assert gate.inspect([("prompt", f"{PERSONAL}, {CARD}")]).action == "local"
    assert gate.inspect([("prompt", "What is 2 + 2?")]).action == "allow"


def test_exceptions_win_over_the_policy() -> None:
    kept = gate_of(policy="balanced", entities={"EMAIL_ADDRESS": "local"})
    assert kept.inspect([("prompt", PERSONAL)]).action == "local"
    masked = gate_of(entities={"EMAIL_ADDRESS": "mask", "PHONE_NUMBER": "mask"})
    assert masked.inspect([("prompt", PERSONAL)]).action == "mask"
    allowed = gate_of(entities={"EMAIL_ADDRESS": "allow", "PHONE_NUMBER": "allow"})
    assert allowed.inspect([("prompt", PERSONAL)]).action == "allow"
    assert allowed.inspect_draft(PERSONAL).action == "allow"


def test_in_an_answer_whatever_is_found_stays() -> None:
    assert gate_of(policy="balanced").inspect_draft(PERSONAL).action == "local"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('policy = "balancd"', 'privacy.policy must be one of.*did you mean "balanced"'),
        ("entities = 1", r"\[privacy.entities\] must be a table"),
        ('entities = {PERSON = "msk"}', 'privacy.entities.PERSON must be.*did you mean "mask"'),
    ],
)
def test_b23_a_typo_in_the_policy_stops_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "floe.toml"
    path.write_text(f"[privacy]\n{text}\n", encoding="utf-8")
    with pytest.raises(BadConfig, match=message):
        load_config(path)


def test_b23_a_typo_in_an_entity_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "floe.toml"
    path.write_text('[privacy.entities]\nEMAIL_ADRESS = "mask"\n', encoding="utf-8")
    config = load_config(path).privacy
    with pytest.raises(BadConfig, match=r'EMAIL_ADRESS: .*did you mean "EMAIL_ADDRESS"'):
        build_gate(config, None)
    with pytest.raises(BadConfig, match="zzz: there is no such entity; known: .*API_KEY"):
        policy_of(PrivacyConfig(entities={"zzz": "mask"}))


@pytest.mark.parametrize("failure", ["slow", "broken", "long"])
def test_b22_trouble_means_local_under_every_policy(failure: str) -> None:
    class Broken:
        name = "broken"

        def find(self, text: str) -> list[object]:
            raise ValueError(text)

    class Late:
        """What a runner says of a detector that hangs."""

        def run(self, call: object, *, timeout_ms: float) -> object:
            raise TooLateError("not done in time")

    gate = Gate(
        detectors=[RuleDetector(), *([Broken()] if failure == "broken" else [])],  # type: ignore[list-item]
        draft_detectors=[RuleDetector()],
        max_chars=10 if failure == "long" else 1000,
        timeout_ms=1000,
        policy=policy_of(PrivacyConfig(policy="balanced")),
        runner=Late() if failure == "slow" else None,  # type: ignore[arg-type]
    )
    verdict = gate.inspect([("prompt", PERSONAL)])
    assert verdict.action == "local"
    assert "ada" not in verdict.reason


def test_a_value_too_short_to_mask_keeps_the_text_here() -> None:
    class Short:
        name = "short"

        def find(self, text: str) -> list[Span]:
            return [Span(entity="PERSON", start=0, end=2, score=0.9, recogniser="short")]

    gate = Gate(
        detectors=[Short()],
        draft_detectors=[Short()],
        max_chars=1000,
        timeout_ms=5000,
        policy=policy_of(PrivacyConfig(policy="balanced")),
    )
    assert gate.inspect([("prompt", "Li")]).reason == (
        "found PERSON; a value is too short to be replaced wherever it stands"
    )
    # the detector still finds "[P" of "[PERSON_1]": a part of a placeholder is nothing private
    long = gate.inspect([("prompt", "Ada King")])
    assert long.reason == "found PERSON; a value is too short to be replaced wherever it stands"


def test_what_the_rules_still_see_after_masking_keeps_the_text_here() -> None:
    class Half:
        """Finds the first half of a mail address, as a sloppy model might."""

        name = "half"

        def find(self, text: str) -> list[Span]:
            at = text.find("ada")
            return [Span(entity="PERSON", start=at, end=at + 3, score=1.0, recogniser="half")] * (
                at >= 0
            )

    class Late(RuleDetector):
        def find(self, text: str) -> list[Span]:
            return [] if text.startswith("ada") else super().find(text)

    gate = Gate(
        detectors=[Half()],
        draft_detectors=[Late()],
        max_chars=1000,
        timeout_ms=5000,
        policy=policy_of(PrivacyConfig(policy="balanced")),
    )
    verdict = gate.inspect([("prompt", "ada, bob@example.org")])
    assert (verdict.action, verdict.reason) == ("local", "masking leaves EMAIL_ADDRESS")
