"""What to load before it is asked for: expected requests first, then the plan, then predictions.

Expected: a request is on its way (`AdapterCache.expect`). Preferred: the slow time scale wants it
in memory. Predicted: the replacement policy thinks it likely. All wait until the loader has
nothing else to do and nobody waits for room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from floe.adapters.slots import Ahead
from floe.core.route import Share

Mode = Literal["both", "queue", "off"]

AHEAD_SHARE = 0.25
"""Predicted adapters that nobody has used yet fill at most this share of the budget."""
AT_MOST = 4
"""... and are at most so many."""

_LIKELY = 1024
_LEAST_CHANCE = 0.01
_WORTH = 1.1
_SETTLE_S = 30.0
_PAUSE_S = 60.0
_WASTED_IN_A_ROW = 8
_LIKELY_EVERY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An adapter to load ahead. `chances`: how likely the policy thinks each adapter is."""

    share: Share
    kind: Ahead
    chances: Mapping[str, float] = field(default_factory=dict)


class Foresight:
    """Books of what is expected, preferred and predicted. Times are one clock's seconds."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._expected: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._preferred: dict[str, float] = {}  # protected until
        self._order: tuple[str, ...] = ()
        self._skip: dict[tuple[str, Ahead], float] = {}
        self._row: deque[bool] = deque(maxlen=_WASTED_IN_A_ROW)
        self._paused_until_s = self._likely_from_s = 0.0
        self._has_ideas = False
        self.count: Counter[str] = Counter()

    def expect(self, shares: Sequence[Share]) -> None:
        """They will be leased soon."""
        for share in shares:
            self._expected[share.digest] += 1
            self._names[share.digest] = share.name

    def unexpect(self, shares: Sequence[Share]) -> None:
        """No longer; undoes one `expect`."""
        for share in shares:
            self._expected[share.digest] -= 1
            if not self._expected[share.digest]:
                del self._expected[share.digest]
                self._names.pop(share.digest, None)

    def prefer(self, digests: Sequence[str], at_s: float) -> None:
        """The plan from now on; what is no longer in it stays protected a little (hysteresis)."""
        settled = at_s + _SETTLE_S
        old = {d: min(until, settled) for d, until in self._preferred.items() if until > at_s}
        self._order = tuple(dict.fromkeys(digests))
        self._preferred = old | dict.fromkeys(self._order, float("inf"))

    def forget(self, digest: str) -> None:
        """It is gone."""
        self._preferred.pop(digest, None)
        self._skip = {key: until for key, until in self._skip.items() if key[0] != digest}
        self._order = tuple(d for d in self._order if d != digest)

    def skip(self, digest: str, *, until_s: float, kind: Ahead = "") -> None:
        """Do not try this one before, for that reason; "" = for none."""
        self._skip[digest, kind] = until_s

    @property
    def is_watching(self) -> bool:
        """Whether something may be worth loading later though nothing happens."""
        return self.mode == "both" and (bool(self._order) or self._has_ideas)

    @property
    def expected(self) -> set[str]:
        """Digests on their way."""
        return set(self._expected)

    def preferred(self, at_s: float) -> set[str]:
        """Digests that the plan protects."""
        return {d for d, until in self._preferred.items() if until > at_s}

    def is_current(self, candidate: Candidate, at_s: float) -> bool:
        """Whether the reason for it still holds."""
        digest = candidate.share.digest
        if candidate.kind == "expected":
            return digest in self._expected
        return candidate.kind != "preferred" or digest in self.preferred(at_s)

    def candidates(
        self,
        *,
        is_here: Callable[[str], bool],
        likely: Callable[[int], Sequence[tuple[str, float]]],
        at_s: float,
    ) -> Iterator[Candidate]:
        """What to load next, best first."""
        self._skip = {key: until for key, until in self._skip.items() if until > at_s}

        def is_absent(digest: str, kind: Ahead) -> bool:
            skipped = (digest, kind) in self._skip or (digest, "") in self._skip
            return not skipped and not is_here(digest)

        if self.mode == "off":
            return
        for digest in list(self._expected):
            if is_absent(digest, "expected"):
                share = Share(name=self._names[digest], digest=digest, weight=1.0)
                yield Candidate(share=share, kind="expected")
        if self.mode == "queue":
            return
        for digest in self._order:
            if is_absent(digest, "preferred"):
                share = Share(name="", digest=digest, weight=1.0)
                yield Candidate(share=share, kind="preferred")
        if at_s < max(self._paused_until_s, self._likely_from_s):
            return
        self._likely_from_s = at_s + _LIKELY_EVERY_S
        chances = dict(likely(_LIKELY))
        self._has_ideas = bool(chances)
        for digest, chance in chances.items():
            if chance >= _LEAST_CHANCE and is_absent(digest, "predicted"):
                share = Share(name="", digest=digest, weight=1.0)
                yield Candidate(share=share, kind="predicted", chances=chances)

    def is_worth(
        self, candidate: Candidate, victims: Sequence[str], load_ms: Callable[[str], float]
    ) -> bool:
        """Whether a predicted adapter is likely to save more than what goes for it."""
        gain = candidate.chances[candidate.share.digest] * load_ms(candidate.share.digest)
        loss = sum(candidate.chances.get(v, 0.0) * load_ms(v) for v in victims)
        return gain > _WORTH * loss

    def began(self, kind: Ahead) -> None:
        """A load ahead."""
        self.count[f"{kind}_begun"] += 1

    def resolved(self, kind: Ahead, *, used: bool, at_s: float) -> None:
        """Somebody asked for it, or it went unused. Predictions that only fail pause (A71)."""
        self.count[f"{kind}_{'used' if used else 'wasted'}"] += 1
        if kind == "predicted":
            self._row.append(used)
            if len(self._row) == _WASTED_IN_A_ROW and not any(self._row):
                self._paused_until_s = at_s + _PAUSE_S
                self._row.clear()

    def total(self, what: str) -> int:
        """Loads ahead that were "begun", "used" or "wasted"."""
        return sum(n for name, n in self.count.items() if name.endswith(what))
