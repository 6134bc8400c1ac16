"""How long the gate takes for a text, beside Presidio's analyzer, turn by turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PROMPT_CHARS = 512


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Milliseconds for each text, by side."""

    ms: dict[str, list[float]]

    def median(self, side: str) -> float | None:
        """The median of one side; None where it did not run."""
        return statistics.median(self.ms[side]) if self.ms.get(side) else None

    def ratio(self, above: str, below: str) -> float | None:
        """One median over the other."""
        a, b = self.median(above), self.median(below)
        return a / b if a is not None and b else None

    def where(self, chosen: Sequence[bool]) -> Timed:
        """Only the chosen texts."""
        ms = {
            side: [t for t, c in zip(ts, chosen, strict=True) if c] for side, ts in self.ms.items()
        }
        return Timed(ms=ms)


def time_sides(texts: Sequence[str], sides: dict[str, Callable[[str], object]]) -> Timed:
    """Each text by every side, in an order that turns with the text; the first run warms up."""
    names = list(sides)
    ms: dict[str, list[float]] = {name: [] for name in names}
    for name in names if texts else ():
        sides[name]("Warm up: nothing is measured yet.")
    for i, text in enumerate(texts):
        for name in [*names[i % len(names) :], *names[: i % len(names)]]:
            began = time.perf_counter()
            sides[name](text)
            ms[name].append((time.perf_counter() - began) * 1000)
    return Timed(ms=ms)


def prompts(sentences: Sequence[str], *, n: int, seed: int) -> list[str]:
    """`n` texts of `PROMPT_CHARS` characters, of sentences drawn by the seed."""
    rng = random.Random(seed)
    found = []
    for _ in range(n):
        text = ""
        while len(text) < PROMPT_CHARS:
            text += rng.choice(sentences) + " "
        found.append(text[:PROMPT_CHARS])
    return found
