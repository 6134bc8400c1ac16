"""Texts with nothing private in them that look as if: logs, lock files, JSON, code, news.

Frames filled by a seed, and excerpts of this package's own source. Every other frame and source
file, and other names of companies and cities, are for tuning ("train"), the rest is measured.
The news names organisations and places but no people: to the gate a name in a newspaper is
somebody's name as well.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

Split = Literal["train", "test"]
_SLOT = re.compile(r"\{([a-z]+[0-9]*)\}")
_COUNTED = re.compile(r"(n|hex|b)([0-9]+)")
_LINES = {"log": 6, "lock": 4, "json": 2, "news": 3, "code": 3}
_SOURCES = ("core", "engine", "fusion", "adapters", "routing", "cloud", "models")
_EXCERPT_LINES = 14
_CHOICES: dict[str, tuple[str, ...]] = {
    "company": (
        "Northwind Energy",
        "Bluefin Motors",
        "Altitude Airways",
        "Granite Chips",
        "Corvus Steel",
        "Zenith Systems",
    ),
    "company2": ("Harbour Foods", "Polar Shipping", "Summit Telecom"),
    "city": ("Lisbon", "Rotterdam", "Osaka", "Toronto", "Gdansk", "Melbourne", "Nairobi"),
    "city2": ("Porto", "Antwerp", "Kyoto", "Ottawa"),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
    "month": ("January", "March", "April", "July", "September", "November"),
    "pkg": ("left-pad", "lodash", "serde", "tokio", "requests", "webpack", "rspec", "zlib", "sync"),
}


@cache
def _frames() -> dict[str, tuple[str, ...]]:
    text = (files("floe.evaluation") / "data" / "privacy_negatives.txt").read_text(encoding="utf-8")
    kinds: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            kinds[line[3:]] = []
        elif line and not line.startswith("# "):
            next(reversed(kinds.values())).append(line.replace("\\n", "\n"))
    return {kind: tuple(frames) for kind, frames in kinds.items()}


def negatives(split: Split, *, n: int, seed: int) -> list[tuple[str, str]]:
    """About `n` (kind, text), as many of each kind; the same arguments give the same texts."""
    rng = random.Random(f"negatives {split} {seed}")
    kinds = [*_frames(), "source"]
    return [(kind, _text(kind, rng, split)) for _ in range(-(-n // len(kinds))) for kind in kinds]


def _text(kind: str, rng: random.Random, split: Split) -> str:
    side = slice(0 if split == "train" else 1, None, 2)
    if kind == "source":
        return _excerpt(rng, _sources()[side])
    frames = _frames()[kind][side]
    chosen = rng.sample(frames, min(len(frames), rng.randint(1, _LINES[kind])))
    lines = [_SLOT.sub(lambda m: _value(m.group(1), rng, side), frame) for frame in chosen]
    return (" " if kind == "news" else "\n").join(lines)


@cache
def _sources() -> tuple[Path, ...]:
    root = Path(str(files("floe")))
    return tuple(sorted(path for part in _SOURCES for path in (root / part).glob("*.py")))


def _excerpt(rng: random.Random, sources: Sequence[Path]) -> str:
    lines = rng.choice(sources).read_text(encoding="utf-8").splitlines()
    start = rng.randrange(max(1, len(lines) - _EXCERPT_LINES))
    return "\n".join(lines[start : start + _EXCERPT_LINES])


def _value(slot: str, rng: random.Random, side: slice) -> str:
    if slot in _CHOICES:
        return rng.choice(_CHOICES[slot][side])
    counted = _COUNTED.fullmatch(slot)
    if counted:
        return _COUNTED_MADE[counted.group(1)](rng, int(counted.group(2)))
    return _MADE[slot](rng)


def _number(rng: random.Random, n: int) -> str:
    return str(rng.randrange(10 ** (n - 1), 10**n))


def _of(letters: str) -> Callable[[random.Random, int], str]:
    return lambda rng, n: "".join(rng.choice(letters) for _ in range(n))


_hex = _of("0123456789abcdef")
_COUNTED_MADE = {"n": _number, "hex": _hex, "b": _of(string.ascii_letters + string.digits + "+/")}
_MADE: dict[str, Callable[[random.Random], str]] = {
    "d": lambda rng: str(rng.randrange(1, 9)),
    "iso": lambda rng: (
        datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(40_000_000))
    ).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "uuid": lambda rng: "-".join(_hex(rng, n) for n in (8, 4, 4, 4, 12)),
    "version": lambda rng: ".".join(str(rng.randrange(25)) for _ in range(3)),
    "sku": lambda rng: f"{''.join(rng.sample('ABCDEFGHKLMNPRST', 2))}-{rng.randrange(1000, 99999)}",
    "year": lambda rng: str(rng.randrange(1990, 2026)),
}
