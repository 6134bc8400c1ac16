"""What a finding means: the text stays here, the value is masked, or it does not matter."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from floe.core.config import PrivacyConfig
from floe.core.errors import BadConfig

Treatment = Literal["local", "mask", "allow"]

# Who somebody is: a placeholder takes its place and the rest still makes sense.
MASKED_WHEN_BALANCED = frozenset(
    {
        *("PERSON", "EMAIL_ADDRESS", "PHONE_NUMBER", "STREET_ADDRESS", "GPE", "ZIP_CODE", "URL"),
        *("IP_ADDRESS", "DATE_OF_BIRTH", "MEDICAL_RECORD_NUMBER", "GOVERNMENT_ID", "PASSPORT"),
        *("DRIVER_LICENSE", "TAX_ID", "US_SSN", "UK_NHS", "UK_NINO", "DE_TAX_ID", "ES_NIF"),
        *("ES_NIE", "IT_FISCAL_CODE", "IN_AADHAAR", "PL_PESEL", "NL_BSN", "CN_RESIDENT_ID"),
        *("IN_PAN", "LICENSE_PLATE"),
    }
)
# What opens doors or moves money: a text around it is not worth the risk.
ALWAYS_LOCAL = frozenset(
    {
        *("API_KEY", "PRIVATE_KEY", "PASSWORD", "URL_CREDENTIALS"),
        *("CREDIT_CARD", "IBAN_CODE", "BANK_ACCOUNT", "CRYPTO"),
    }
)
ENTITIES = MASKED_WHEN_BALANCED | ALWAYS_LOCAL
"""Every entity that the shipped detectors report."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Treatments by entity; what is not named is `local`."""

    treatments: Mapping[str, Treatment] = field(default_factory=lambda: MappingProxyType({}))

    def treatment(self, entity: str) -> Treatment:
        """What to do about a finding of this entity."""
        return self.treatments.get(entity, "local")


STRICT = Policy()
"""Any finding keeps the whole text on the device."""


def policy_of(config: PrivacyConfig) -> Policy:
    """The named policy with the configured exceptions.

    Raises:
        BadConfig: an exception for an entity that no detector reports (bug-log B23: a typo must
            not run with less protection, so it does not run at all).
    """
    balanced = config.policy == "balanced"
    treatments: dict[str, Treatment] = {
        entity: "mask" if balanced and entity in MASKED_WHEN_BALANCED else "local"
        for entity in ENTITIES
    }
    for entity, treatment in config.entities.items():
        if entity not in ENTITIES:
            near = difflib.get_close_matches(entity.upper(), sorted(ENTITIES), n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(ENTITIES))}"
            name = f"privacy.entities.{entity}"
            raise BadConfig(f"{name}: there is no such entity; {hint}", param=name)
        treatments[entity] = treatment
    return Policy(treatments=MappingProxyType(treatments))
