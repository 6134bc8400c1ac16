"""Small files of sysfs, read as what they are."""

from __future__ import annotations

import math
from pathlib import Path


def text_of(path: Path) -> str:
    """The file's text without space around it.

    Raises:
        OSError: it cannot be read.
    """
    return path.read_text(encoding="ascii", errors="replace").strip()


def number_of(path: Path) -> float:
    """The file's number.

    Raises:
        OSError: it cannot be read. ValueError: it holds no finite number.
    """
    number = float(text_of(path))
    if not math.isfinite(number):
        raise ValueError(f"{number} is no figure")
    return number


def text_or(path: Path, other: str) -> str:
    """The file's text, or `other` if it cannot be read."""
    try:
        return text_of(path)
    except OSError:
        return other
