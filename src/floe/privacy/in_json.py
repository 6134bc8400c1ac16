"""Sentences inside JSON: results of tools, logs, exported records.

A model that reads sentences misses a quarter of the names in {"text": "Write to Ada King."}, and
none once quotes, braces and keys' colons are out of the way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from floe.privacy.base import Detector, Span

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_JSON = re.compile(r'[{\[,:]\s*"|"\s*[:,\]}]')


class InJson:
    """`inner`, which reads a text that holds JSON a second time as its strings alone."""

    def __init__(self, inner: Detector) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The name of the detector inside."""
        return self._inner.name

    def find(self, text: str) -> Sequence[Span]:
        """What is found in the text as it is, and in its strings."""
        found = self._inner.find(text)
        if _JSON.search(text) is None:
            return found
        return [*found, *self._inner.find(strings_of(text))]


def strings_of(text: str) -> str:
    """The strings of the JSON in a text at their places, spaces around them."""
    out = [" "] * len(text)
    for literal in _LITERAL.finditer(text):
        out[literal.start(1) : literal.end(1)] = literal[1]
    return "".join(out)
