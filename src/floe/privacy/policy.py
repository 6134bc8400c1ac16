"""What a finding means: the text stays here, the value is masked, or it does not matter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from floe.core.errors import BadConfig
from floe.core.sections import PrivacyConfig, TenantConfig
from floe.privacy.rules import ALL

Treatment = Literal["local", "mask", "allow"]
MIN_SCORE = 0.5
"""How sure a finding must be to count, where the policy says nothing else."""
DEFAULT_TENANT = "default"

# Who somebody is: a placeholder takes its place and the rest still makes sense.
MASKED_WHEN_BALANCED = frozenset(
    {
        *("PERSON", "EMAIL_ADDRESS", "PHONE_NUMBER", "STREET_ADDRESS", "GPE", "ZIP_CODE", "URL"),
        *("IP_ADDRESS", "DATE_OF_BIRTH", "MEDICAL_RECORD_NUMBER", "GOVERNMENT_ID", "PASSPORT"),
        *("DRIVER_LICENSE", "TAX_ID", "US_SSN", "UK_NHS", "UK_NINO", "DE_TAX_ID", "ES_NIF"),
        *("ES_NIE", "IT_FISCAL_CODE", "IN_AADHAAR", "PL_PESEL", "NL_BSN", "CN_RESIDENT_ID"),
        *("IN_PAN", "LICENSE_PLATE", "MAC_ADDRESS", "COORDINATES", "INSURANCE_NUMBER", "USER_NAME"),
        *("US_ITIN", "US_EIN", "US_PASSPORT", "US_DRIVER_LICENSE", "US_MBI", "US_NPI"),
        *("MEDICAL_LICENSE", "UK_PASSPORT", "UK_DRIVING_LICENCE", "UK_UTR", "UK_POSTCODE"),
        *("DE_ID_CARD", "DE_PASSPORT", "DE_SOCIAL_SECURITY", "DE_HEALTH_INSURANCE", "FR_NIR"),
        *("FR_PASSPORT", "FR_CNI", "IT_VAT_CODE", "IT_PASSPORT", "IT_IDENTITY_CARD"),
        *("IT_DRIVER_LICENSE", "PL_NIP", "PL_REGON", "PL_ID_CARD", "IN_VOTER", "IN_PASSPORT"),
        *("IN_VEHICLE_REGISTRATION", "IN_GSTIN", "CN_PASSPORT", "CN_SOCIAL_CREDIT_CODE"),
        *("HK_ID", "TW_ID", "DATE_TIME", "AGE", "NRP", "ORGANIZATION", "TITLE"),
    }
)
# What opens doors or moves money: a text around it is not worth the risk.
ALWAYS_LOCAL = frozenset(
    {
        *("API_KEY", "PRIVATE_KEY", "PASSWORD", "URL_CREDENTIALS"),
        *("CREDIT_CARD", "IBAN_CODE", "BANK_ACCOUNT", "CRYPTO"),
        *("US_BANK_NUMBER", "ABA_ROUTING_NUMBER"),
        "PRIVATE_MATTER",  # a passage in plain words: nothing in it could be masked
    }
)
PASSAGES = frozenset({"PRIVATE_MATTER"})
"""Findings that are passages, not values: they say that a text is private, not which word."""
ENTITIES = (
    MASKED_WHEN_BALANCED
    | ALWAYS_LOCAL
    | frozenset(rule.entity for rule in ALL if hasattr(rule, "entity"))
)
"""Every entity that the shipped detectors report; one that is in neither list above is `local`."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Treatments by entity, what is not named is `local`; and how sure a finding must be.

    `scores`: the least score that counts, by entity; MIN_SCORE for the others.
    """

    treatments: Mapping[str, Treatment] = field(default_factory=lambda: MappingProxyType({}))
    scores: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def treatment(self, entity: str) -> Treatment:
        """What to do about a finding of this entity."""
        return self.treatments.get(entity, "local")

    def least_score(self, entity: str) -> float:
        """How sure a finding of this entity must be to count."""
        return self.scores.get(entity, MIN_SCORE)

    def action(self, entity: str, score: float) -> Treatment:
        """What to do about this finding: `allow` also when it is not sure enough to count."""
        return "allow" if score < self.least_score(entity) else self.treatment(entity)

    def looser(self) -> list[str]:
        """What this policy lets through on somebody's explicit wish, for the log; no values."""
        allowed = [f'{e} = "allow"' for e, t in sorted(self.treatments.items()) if t == "allow"]
        unsure = [f"{e} counts from {s:g}" for e, s in sorted(self.scores.items()) if s > MIN_SCORE]
        return [*allowed, *unsure]


STRICT = Policy()
"""Any finding keeps the whole text on the device."""


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The policy of [privacy] and those of tenants that have one."""

    default: Policy = STRICT
    tenants: Mapping[str, Policy] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, tenant: str) -> Policy:
        """A tenant's policy; for a name that nobody configured the strictest there is."""
        known = self.tenants.get(tenant)
        if known is not None:
            return known
        return self.default if tenant == DEFAULT_TENANT else STRICT


def policies_of(config: PrivacyConfig, tenants: Mapping[str, TenantConfig]) -> Policies:
    """All policies of a configuration.

    Raises:
        BadConfig: as `policy_of` says, for [privacy] and for every tenant.
    """
    return Policies(
        default=policy_of(config),
        tenants=MappingProxyType({n: _of_tenant(config, n, t) for n, t in tenants.items()}),
    )


def policy_of(config: PrivacyConfig) -> Policy:
    """The named policy with the configured exceptions.

    Raises:
        BadConfig: an exception for an entity that no detector reports, a score that is none, or
            "custom" without entities (bug-log B23: a typo must not run with less protection, so
            it does not run at all).
    """
    return _policy(config.policy, config.entities, config.scores, where="privacy")


def _of_tenant(config: PrivacyConfig, name: str, tenant: TenantConfig) -> Policy:
    """A named policy stands alone; without a name the tenant's exceptions go over [privacy]."""
    where = f"tenants.{name}"
    if tenant.policy:
        return _policy(tenant.policy, tenant.entities, tenant.scores, where=where)
    _check_names(tenant.entities, tenant.scores, where=where)
    entities = {**config.entities, **tenant.entities}
    scores = {**config.scores, **tenant.scores}
    return _policy(config.policy, entities, scores, where=where)


def _policy(
    name: str, entities: Mapping[str, Treatment], scores: Mapping[str, float], *, where: str
) -> Policy:
    _check_names(entities, scores, where=where)
    if name == "custom" and not entities:
        raise BadConfig(
            f'{where}.policy = "custom" needs [{where}.entities]: name what may be masked or '
            "allowed; everything else is local",
            param=f"{where}.entities",
        )
    balanced = name == "balanced"
    treatments: dict[str, Treatment] = {
        entity: "mask" if balanced and entity in MASKED_WHEN_BALANCED else "local"
        for entity in ENTITIES
    }
    return Policy(
        treatments=MappingProxyType(treatments | dict(entities)),
        scores=MappingProxyType(dict(scores)),
    )


def _check_names(
    entities: Mapping[str, Treatment], scores: Mapping[str, float], *, where: str
) -> None:
    _check_known(entities, where=f"{where}.entities")
    _check_known(scores, where=f"{where}.scores")
    for entity in PASSAGES & entities.keys():
        if entities[entity] == "mask":
            name = f"{where}.entities.{entity}"
            raise BadConfig(
                f'{name}: a whole passage cannot be masked; choose "local" or "allow"', param=name
            )
    for entity, score in scores.items():
        if not 0.0 <= score <= 1.0:
            name = f"{where}.scores.{entity}"
            raise BadConfig(f"{name} must be between 0 and 1", param=name)


def _check_known(entities: Iterable[str], *, where: str) -> None:
    for entity in entities:
        if entity in ENTITIES:
            continue
        near = difflib.get_close_matches(entity.upper(), sorted(ENTITIES), n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(ENTITIES))}"
        name = f"{where}.{entity}"
        raise BadConfig(f"{name}: there is no such entity; {hint}", param=name)
