"""Small files of sysfs, read as what they are."""

from __future__ import annotations

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
        OSError: it cannot be read. ValueError: it holds no number.
    """
    return float(text_of(path))


def text_or(path: Path, other: str) -> str:
    """The file's text, or `other` if it cannot be read."""
    try:
        return text_of(path)
    except OSError:
        return other
