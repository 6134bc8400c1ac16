"""Labelled texts for the privacy benchmark: what is private in them, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """[start, end) in code points of a text, and the entity that stands there."""

    entity: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """A text with its private places; `frame` numbers the template it was made from."""

    text: str
    places: tuple[Place, ...]
    frame: int

    @property
    def is_private(self) -> bool:
        """Whether anything in it is private."""
        return bool(self.places)
