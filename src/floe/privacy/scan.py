"""Private places in a text of any length, by line and column, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from floe.privacy.base import Span
from floe.privacy.policy import PASSAGES, Policy, Treatment

PIECE_CHARS = 8_192
_OVERLAP_CHARS = 256


@dataclass(frozen=True, kw_only=True)
class Place:
    """A finding: `line` and `column` from 1, in code points; `chars` long. `action` by policy."""

    line: int
    column: int
    chars: int
    entity: str
    score: float
    recogniser: str
    action: Treatment
    text: str


def scan(
    pieces: Iterable[str], find: Callable[[str], Sequence[Span]], policy: Policy
) -> Iterator[Place]:
    """Every finding that counts, by place. Holds at most two pieces in memory.

    `pieces` is the text in any cut. It is looked at in stretches that end at a line's end where
    there is one, each with the end of the one before in front, so that a cut hides no value of up
    to 256 characters. A finding of an entity that is `allow` is given too; an unsure one is not.
    """
    line, column, reported = 1, 1, 0  # of window[0]; chars of the window that were reported
    window = ""
    for stretch, is_last in _stretches(pieces):
        window += stretch
        end = len(window) if is_last else max(reported, len(window) - _OVERLAP_CHARS)
        yielded = reported
        for span in find(window):
            if span.start < reported or (span.start >= end and not is_last):
                continue
            if span.score < policy.least_score(span.entity):
                continue
            yield _place(window, span, policy, line, column)
            if span.entity not in PASSAGES:
                yielded = max(yielded, span.end)
        keep_from = max(0, end - _OVERLAP_CHARS)
        line, column = _moved(window[:keep_from], line, column)
        reported = max(end, yielded) - keep_from
        window = window[keep_from:]


def _place(window: str, span: Span, policy: Policy, line: int, column: int) -> Place:
    at_line, at_column = _moved(window[: span.start], line, column)
    return Place(
        line=at_line,
        column=at_column,
        chars=span.end - span.start,
        entity=span.entity,
        score=span.score,
        recogniser=span.recogniser,
        action=policy.treatment(span.entity),
        text=window[span.start : span.end],
    )


def _moved(text: str, line: int, column: int) -> tuple[int, int]:
    """The place behind `text` that began at this one."""
    breaks = text.count("\n")
    if not breaks:
        return line, column + len(text)
    return line + breaks, len(text) - text.rindex("\n")


def _stretches(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The text in stretches of about PIECE_CHARS, up to a line's end where one is near."""
    held = ""
    for piece in pieces:
        held += piece
        while len(held) >= 2 * PIECE_CHARS:
            at = held.rfind("\n", PIECE_CHARS // 2, PIECE_CHARS) + 1 or PIECE_CHARS
            yield held[:at], False
            held = held[at:]
    yield held, True
