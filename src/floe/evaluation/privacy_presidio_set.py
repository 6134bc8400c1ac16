"""Presidio's research set: 1,500 English sentences with labelled places (MIT, Microsoft).

Sentences are made from 209 templates. Half of the templates, drawn by a seed, were tuned on;
the sentences of the other half were only measured.
"""

from __future__ import annotations

import json
import lzma
import random
from functools import cache
from importlib.resources import files

from floe.evaluation.privacy_sets import Example, Place

PRIVATE = frozenset(
    {
        *("PERSON", "STREET_ADDRESS", "PHONE_NUMBER", "EMAIL_ADDRESS", "CREDIT_CARD", "US_SSN"),
        *("IBAN_CODE", "US_DRIVER_LICENSE", "IP_ADDRESS", "ZIP_CODE"),
    }
)
"""What makes a sentence private; GPE, ORGANIZATION, DATE_TIME, AGE, NRP, TITLE, DOMAIN_NAME alone
do not."""
_SEED = 7


@cache
def sentences() -> tuple[Example, ...]:
    """The whole set in its own order; `places` of all labels, private or not."""
    packed = (files("floe.evaluation") / "data" / "privacy_presidio.json.xz").read_bytes()
    return tuple(
        Example(
            text=text,
            places=tuple(Place(entity=e, start=a, end=b) for e, a, b in places),
            frame=frame,
        )
        for frame, text, places in json.loads(lzma.decompress(packed))
    )


def is_private(example: Example) -> bool:
    """Whether it holds what counts as private in this set."""
    return any(place.entity in PRIVATE for place in example.places)


@cache
def tuned_frames() -> frozenset[int]:
    """The templates that thresholds were chosen on."""
    every = sorted({example.frame for example in sentences()})
    random.Random(_SEED).shuffle(every)
    return frozenset(every[: len(every) // 2])
