"""How much of a restored stream waits: placeholders fed letter by letter."""

from __future__ import annotations

from collections.abc import Sequence

from floe.core.verdict import Finding
from floe.evaluation.privacy_sets import Example
from floe.privacy.masking import CannotMask, mask_texts
from floe.privacy.restore import Restorer


def holdback(examples: Sequence[Example]) -> tuple[int, int, int]:
    """(most characters that waited, longest placeholder, streams that came back changed)."""
    held = longest = changed = 0
    for example in examples:
        findings = [
            Finding(
                entity=p.entity,
                field="prompt",
                start=p.start,
                end=p.end,
                score=1.0,
                recogniser="set",
            )
            for p in example.places
        ]
        try:
            masking = mask_texts([("prompt", example.text)], findings)
        except CannotMask:
            continue
        longest = max([longest, *map(len, masking.values.placeholders)])
        restorer = Restorer(masking.values)
        out = []
        for char in masking.texts["prompt"].text:
            out.append(restorer.feed(char))
            held = max(held, restorer.held_chars)
        changed += "".join([*out, restorer.finish()]) != example.text
    return held, longest, changed
