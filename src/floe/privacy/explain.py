"""What the gate saw, as rows for `floe explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floe.core.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One finding with the text it covers: for the user's own terminal, never for a log."""

    field: str
    entity: str
    start: int
    end: int
    score: float
    recogniser: str
    text: str


def explain(verdict: Verdict, texts: Sequence[tuple[str, str]]) -> list[Explained]:
    """A row per finding, in the order of fields and places; [start, end) in code points."""
    order = {field: i for i, (field, _) in enumerate(texts)}
    by_field = dict(texts)
    rows = [
        Explained(
            field=f.field,
            entity=f.entity,
            start=f.start,
            end=f.end,
            score=f.score,
            recogniser=f.recogniser,
            text=by_field.get(f.field, "")[f.start : f.end],
        )
        for f in verdict.findings
    ]
    return sorted(rows, key=lambda r: (order.get(r.field, len(order)), r.start, r.end))
