"""Placeholders back to their values, in a stream, with nothing held back longer than needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from floe.privacy.values import Values


class Restorer:
    """Text with placeholders in, text with values out.

    Only what may be the beginning of a placeholder waits, so never as much as the longest one
    (bug-log B17). A value is put in once and not looked at again (B14, B16). `form` shapes a value
    for where it goes: `in_json` for the arguments of a tool, which are a JSON text.
    """

    def __init__(self, values: Values, *, form: Callable[[str], str] = str) -> None:
        self._values = {p: form(v) for p, v in values.placeholders.items()}
        self._pattern = re.compile("|".join(map(re.escape, self._values)) or r"(?!)")
        self._longest = max(map(len, self._values), default=0)
        self._starts = {p[:n] for p in self._values for n in range(1, len(p))}
        self._held = ""

    @property
    def held_chars(self) -> int:
        """How many characters wait."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """What became final with `text`."""
        text = self._held + text
        most = min(self._longest, len(text))
        hold = next((n for n in range(most, 0, -1) if text[-n:] in self._starts), 0)
        self._held = text[len(text) - hold :]
        return self._restored(text[: len(text) - hold])

    def finish(self) -> str:
        """What was still held back when the stream ended."""
        rest, self._held = self._held, ""
        return rest

    def _restored(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._values[match.group()], text)


def in_json(value: str) -> str:
    """A value as it stands between the quotes of a JSON string."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def restored(text: str, values: Values, *, form: Callable[[str], str] = str) -> str:
    """A whole text with its placeholders replaced."""
    restorer = Restorer(values, form=form)
    return restorer.feed(text) + restorer.finish()
