"""E-mail addresses (RFC 5321 shapes; Latin letters, so that Chinese around them is no part).

Also written for people: "alice (at) example.com", "alice [at] example [dot] com". Not covered:
"alice at example dot com" without brackets, which ordinary sentences look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.rules.hints import Cues, Needs

_LETTERS = "A-Za-z\u00c0-\u024f"
_DOMAIN = re.compile(rf"@(?:[{_LETTERS}0-9-]{{1,63}}\.){{1,8}}(?P<top>[{_LETTERS}]{{2,24}})")
_OPEN, _CLOSE = r"[\[({<]\s?", r"\s?[\])}>]"
_LABEL = rf"[{_LETTERS}0-9](?:[{_LETTERS}0-9-]{{0,61}}[{_LETTERS}0-9])?"
_BRACKET_DOT = rf" ?{_OPEN}(?:dot|d0t|punkt|point|\.){_CLOSE} ?"
_TOP = rf"(?P<top>[{_LETTERS}]{{2,24}})(?![{_LETTERS}0-9])"
_WRITTEN = (
    re.compile(
        rf" ?{_OPEN}(?:at|@|arroba){_CLOSE} ?(?:{_LABEL}(?:\.|{_BRACKET_DOT})){{1,8}}{_TOP}",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?: ?@ ?| at )(?:{_LABEL}\.){{0,6}}(?:{_LABEL}{_BRACKET_DOT}){{1,8}}{_TOP}",
        re.IGNORECASE,
    ),
)
_LOCAL = re.compile(rf"[{_LETTERS}0-9.!#$%&'*+/=?^_`{{|}}~-]")
_AT = frozenset({"at", "arroba"})
_LOCAL_MAX_CHARS = 64
# "icon@2x.png" is a file name.
_FILE_ENDINGS = frozenset(
    ("png", "jpg", "jpeg", "gif", "svg", "webp", "js", "mjs", "css", "json", "html", "txt", "jsx")
)

_NEEDS = Needs(signs=(("@", 1), ("[", 1), ("(", 1), ("{", 1), ("<", 1)))


@dataclass(frozen=True, kw_only=True)
class EmailRule:
    """Starts from each "@" and walks left, so that long words cost nothing."""

    name: str = "email"
    opaque_too: bool = True
    needs: Needs = _NEEDS
    cues: Cues = _NEEDS.cues

    def find(self, text: str) -> Iterator[Span]:
        """Spans in the normalised text."""
        if "@" in text:
            yield from self._found(_DOMAIN, text)
        if any(bracket in text for bracket in "([{<"):
            for pattern in _WRITTEN:
                yield from self._found(pattern, text)

    def _found(self, pattern: re.Pattern[str], text: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            start = match.start()
            floor = max(0, start - _LOCAL_MAX_CHARS)
            while start > floor and _LOCAL.match(text[start - 1]):
                start -= 1
            local = text[start : match.start()].lstrip(".!#$%&'*/=?^`{|}~-")
            if not local or match["top"].lower() in _FILE_ENDINGS:
                continue
            if local == "git" and text[match.end() : match.end() + 1] == ":":
                continue  # an ssh address of a repository
            yield Span(
                entity="EMAIL_ADDRESS",
                start=match.start() - len(local),
                end=match.end(),
                score=0.95,
                recogniser=self.name,
            )


RULE = EmailRule()
