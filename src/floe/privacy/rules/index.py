"""Which rules have to look at a text at all: one pass over its hints instead of one per rule."""

from __future__ import annotations

from collections.abc import Sequence

from floe.privacy.rules.base import Rule
from floe.privacy.rules.hints import Hints

# No rule asks for more digits than this in one number.
_MOST_DIGITS = 20


class RuleIndex:
    """Rules by their cues and needs."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._words: dict[str, list[int]] = {}
        self._parts: dict[str, list[int]] = {}
        self._foreign: dict[str, list[int]] = {}
        self._plain = [i for i, rule in enumerate(self._rules) if not rule.cues]
        for i, rule in enumerate(self._rules):
            for table, cues in (
                (self._words, rule.cues.words),
                (self._parts, rule.cues.parts),
                (self._foreign, rule.cues.foreign),
            ):
                for cue in cues:
                    table.setdefault(cue, []).append(i)
        self._plain_for: dict[tuple[bool, int], list[int]] = {}

    def candidates(self, hints: Hints) -> list[Rule]:
        """The rules that may find something, in their order."""
        wanted = set(self._without_cues(hints))
        for word in self._words.keys() & hints.words:
            wanted.update(self._words[word])
        lower = hints.lower
        for part, places in self._parts.items():
            if part in lower:
                wanted.update(places)
        if hints.foreign:
            for part, places in self._foreign.items():
                if part in lower:
                    wanted.update(places)
        rules = self._rules
        return [rules[i] for i in sorted(wanted) if rules[i].needs.met_by(hints)]

    def _without_cues(self, hints: Hints) -> list[int]:
        """Of the rules without cues those that script and digits let through; kept by these."""
        key = (hints.han, min(hints.digits, _MOST_DIGITS))
        places = self._plain_for.get(key)
        if places is None:
            han, digits = key
            needs = [(i, self._rules[i].needs) for i in self._plain]
            places = [i for i, n in needs if n.digits <= digits and (han or not n.han)]
            self._plain_for[key] = places
        return places
