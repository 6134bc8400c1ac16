"""Sentences drawn from this folder's templates."""

from __future__ import annotations

import random
import re
from pathlib import Path

HERE = Path(__file__).parent
_CHOICE = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"\$([A-Z])(?![A-Z])")


def words(language: str) -> dict[str, list[str]]:
    """What stands for each `$X`."""
    lines = (HERE / f"words_{language}.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":", 1) for line in lines if line and line[0] != "#")
    return {key: [w.strip() for w in value.split("|")] for key, value in pairs}


def lines(kind: str, language: str) -> list[str]:
    """The templates of a kind ("private", "general"), one each."""
    text = (HERE / f"{kind}_{language}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and line[0] not in "#["]


def sentences(template: str, language: str, count: int) -> list[str]:
    """Up to `count` different sentences, the same ones at every call."""
    rng, known = random.Random(template), words(language)
    drawn = dict.fromkeys(_draw(template, known, rng) for _ in range(2 * count))
    return list(drawn)[:count]


def _draw(template: str, known: dict[str, list[str]], rng: random.Random) -> str:
    text = template
    while _CHOICE.search(text):
        text = _CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), text, count=1)
    while (match := _WORD.search(text)) is not None:
        text = text[: match.start()] + rng.choice(known[match.group(1)]) + text[match.end() :]
    return text[0].upper() + text[1:]
