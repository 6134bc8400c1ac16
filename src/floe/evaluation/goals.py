"""What a benchmark should reach, and the bars that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A field with the value it should reach; `at_most` where less is better.

    `full_alone`: the quick form's figure says nothing of it, and is shown beside no verdict.
    """

    field: str
    about: str
    value: float
    at_most: bool = False
    full_alone: bool = False

    def reached(self, figures: Figures) -> bool | None:
        """Whether it is reached; None when not measured, or not in the form that tells."""
        found = figures.get(self.field)
        if found is None or (self.full_alone and figures.get("form") == "quick"):
            return None
        return bool(found <= self.value if self.at_most else found >= self.value)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars side by side: labels with fields, all in one unit."""

    title: str
    unit: str
    bars: tuple[tuple[str, str], ...]
