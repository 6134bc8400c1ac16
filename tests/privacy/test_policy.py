"""Treatments by entity: strict by default, and a typo stops the start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from floe.core.config import load_config
from floe.core.errors import BadConfig
from floe.core.sections import PrivacyConfig, TenantConfig
from floe.privacy import ner_spans
from floe.privacy.base import Span
from floe.privacy.build import build_gate
from floe.privacy.deadline import TooLateError
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.policy import (
    ALWAYS_LOCAL,
    ENTITIES,
    MASKED_WHEN_BALANCED,
    STRICT,
    Policies,
    policies_of,
    policy_of,
)
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
    with pytest.raises(BadConfig, match=r"zzz: there is no such entity; known: .*API_KEY"):
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


# --- scores


class Unsure:
    """Reports one person, as sure as it is told to be."""

    name = "unsure"

    def __init__(self, score: float) -> None:
        self._score = score

    def find(self, text: str) -> list[Span]:
        end = min(8, len(text))
        span = Span(entity="PERSON", start=0, end=end, score=self._score, recogniser="unsure")
        return [span] if end else []


@pytest.mark.parametrize(
    ("scores", "score", "action"),
    [
        ({}, 0.49, "allow"),
        ({}, 0.5, "local"),
        ({"PERSON": 0.7}, 0.69, "allow"),
        ({"PERSON": 0.7}, 0.7, "local"),
        ({"PERSON": 0.2}, 0.2, "local"),
        ({"PERSON": 0.0}, 0.0, "local"),
        ({"US_SSN": 0.9}, 0.5, "local"),
    ],
)
def test_a_finding_counts_from_its_entity_s_score(
    scores: dict[str, float], score: float, action: str
) -> None:
    gate = Gate(
        detectors=[Unsure(score)],
        draft_detectors=[Unsure(score)],
        max_chars=1000,
        timeout_ms=5000,
        policy=policy_of(PrivacyConfig(scores=scores)),
    )
    assert gate.inspect([("prompt", "Ada King")]).action == action
    assert gate.inspect_draft("Ada King").action == action


def test_custom_says_all_by_itself() -> None:
    custom = policy_of(PrivacyConfig(policy="custom", entities={"PERSON": "mask", "GPE": "allow"}))
    assert (custom.treatment("PERSON"), custom.treatment("GPE")) == ("mask", "allow")
    rest = ENTITIES - {"PERSON", "GPE"}
    assert {custom.treatment(entity) for entity in [*rest, "NEW"]} == {"local"}
    with pytest.raises(BadConfig, match=r"privacy.policy = .custom. needs \[privacy.entities\]"):
        policy_of(PrivacyConfig(policy="custom"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[privacy.scores]\nPERSN = 0.7", 'privacy.scores.PERSN: .*did you mean "PERSON"'),
        ("[privacy.scores]\nPERSON = 1.5", "privacy.scores.PERSON must be between 0 and 1"),
        ("[privacy.scores]\nPERSON = nan", "privacy.scores.PERSON must be between 0 and 1"),
        ('[privacy.scores]\nPERSON = "high"', "privacy.scores.PERSON must be float"),
        ('[tenants.ward]\npolicy = "strikt"', 'tenants.ward.policy must be one of.*"strict"'),
        ('[tenants.ward.entities]\nGPS = "mask"', "tenants.ward.entities.GPS: there is no such"),
        ("[tenants.ward.scores]\nGPE = -1", "tenants.ward.scores.GPE must be between 0 and 1"),
        ('[privacy.entities]\nPRIVATE_MATTER = "mask"', "a whole passage cannot be masked"),
        ('[tenants.ward]\npolicy = "custom"', r"tenants.ward.policy = .custom. needs"),
    ],
)
def test_b23_a_wrong_score_or_tenant_s_policy_stops_the_start(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "floe.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadConfig, match=message):
        config = load_config(path)
        build_gate(config.privacy, None, tenants=config.tenants)


# --- tenants

TENANTS = {
    "ward": TenantConfig(),
    "office": TenantConfig(policy="strict"),
    "press": TenantConfig(entities={"EMAIL_ADDRESS": "allow"}, scores={"PERSON": 0.9}),
    "lab": TenantConfig(policy="custom", entities={"PERSON": "mask"}),
}
BASE = PrivacyConfig(
    policy="balanced", entities={"GPE": "allow"}, scores={"PERSON": 0.4}, ner="off"
)


def test_a_tenant_has_its_own_policy_or_exceptions_to_the_common_one() -> None:
    policies = policies_of(BASE, TENANTS)
    assert policies.of("default") == policies.of("ward") == policy_of(BASE)
    press = policies.of("press")
    assert press.treatment("EMAIL_ADDRESS") == press.treatment("GPE") == "allow"
    assert (press.treatment("PERSON"), press.least_score("PERSON")) == ("mask", 0.9)
    office, lab = policies.of("office"), policies.of("lab")
    assert {office.treatment(entity) for entity in ENTITIES} == {"local"}
    assert office.least_score("PERSON") == 0.5  # a policy by name stands alone
    assert (lab.treatment("PERSON"), lab.treatment("GPE")) == ("mask", "local")


def test_a_tenant_that_nobody_configured_gets_the_strictest() -> None:
    policies = policies_of(BASE, TENANTS)
    assert policies.of("nobody") is policies.of("") is STRICT
    assert Policies().of("default") is STRICT
    gate = build_gate(BASE, None, tenants=TENANTS)
    mail = [("prompt", "write to ada.king@example.org")]
    actions = {t: gate.inspect(mail, tenant=t).action for t in [*TENANTS, "default", "nobody"]}
    assert actions == {
        "ward": "mask",
        "office": "local",
        "press": "allow",
        "lab": "local",
        "default": "mask",
        "nobody": "local",
    }


def test_what_one_tenant_may_say_another_may_not() -> None:
    """What was found clean for one is not remembered as clean for the other."""
    gate = build_gate(BASE, None, tenants=TENANTS)
    text = "word " * 300 + "ada.king@example.org " + "word " * 300
    assert gate.inspect_draft(text, tenant="press").may_leave
    for tenant in ("ward", "office", "default", "nobody"):
        assert not gate.inspect_draft(text + "more", tenant=tenant).may_leave
    assert gate.inspect_draft(text + "more", tenant="press").may_leave


def test_b20_opting_out_is_logged_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        gate = build_gate(BASE, None, tenants=TENANTS)
    assert [r.getMessage() for r in caplog.records] == [
        'privacy lets findings leave the device: GPE = "allow"',
        'tenants.ward lets findings leave the device: GPE = "allow"',
        'tenants.press lets findings leave the device: EMAIL_ADDRESS = "allow", '
        'GPE = "allow", PERSON counts from 0.9',
    ]
    caplog.clear()
    gate.inspect([("prompt", PERSONAL)], tenant="press")
    build_gate(PrivacyConfig(ner="off"), None)
    assert caplog.records == []
