"""Machine-made runs in which no rule for numbers may look: digests, UUIDs, base64 (bug-log B02)."""

from __future__ import annotations

import re

_UUID = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
_OPAQUE = re.compile(
    rf"(?<![0-9A-Za-z+/=])(?:{_UUID}|[0-9A-Fa-f]{{16,128}}|[0-9A-Za-z+/]{{40,}}={{0,2}})(?![0-9A-Za-z+/=])"
)
_SEGMENT = re.compile(r"[+/]")
_MIN_LETTERS = 4
_MAX_SEGMENT_DIGITS = 8


def opaque_spans(text: str) -> list[tuple[int, int]]:
    """[start, end) of every digest, UUID and base64 run; a run of digits alone is none."""
    return [m.span() for m in _OPAQUE.finditer(text) if _is_mixed(m[0])]


def _is_mixed(value: str) -> bool:
    letters = sum(c.isalpha() for c in value)
    # "a/path/4111111111111111" has the alphabet of base64 but holds a number of its own.
    number = any(
        part.isdigit() and len(part) > _MAX_SEGMENT_DIGITS for part in _SEGMENT.split(value)
    )
    return letters >= _MIN_LETTERS and any(c.isdigit() for c in value) and not number
