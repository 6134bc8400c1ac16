"""The cloud's own answer as it streams in, and the advice that lies along it."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field
from typing import Any

from floe.core.advice import Advice, Candidate, Question
from floe.core.errors import CloudFailed

_END_STRINGS = frozenset(
    [
        "<|im_end|>",
        "<|endoftext|>",
        "</s>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
    ]
)
_MOST_DRAFT_BYTES = 500


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """A token of the cloud's answer and what else it could have been."""

    data: bytes
    candidates: tuple[Candidate, ...]


@dataclass(kw_only=True)
class Story:
    """The cloud's own answer so far, by byte offset; `changed` wakes those who wait for more.

    `base` is the answer that the cloud was asked to continue; `text` begins with it.
    """

    base: bytes = b""
    text: bytes = b""
    places: dict[int, Advice] = field(default_factory=dict)
    finish: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.text = self.base

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was said yet."""
        return self.text == self.base and self.finish is None

    def extend(self, tokens: list[Spoken], finish: str | None) -> None:
        """Take what an event brought."""
        for token in tokens:
            at = len(self.text)
            self.places.setdefault(
                at, Advice(offset_bytes=at, candidates=token.candidates, said=token.data)
            )
            self.text += token.data
        self.finish = finish
        if finish == "stop":
            at, end = len(self.text), Candidate(data=b"", log_prob=0.0, end=True)
            self.places.setdefault(at, Advice(offset_bytes=at, candidates=(end,)))
        self.wake()

    async def about(
        self, question: Question, reader: asyncio.Task[None]
    ) -> tuple[Advice, ...] | None:
        """Advice from the answer's end on; None where the answer is not the cloud's own text.

        Waits until the last place of the draft is known, or the draft leaves the cloud's text, or
        `reader` is done. Raises what ended it, if nothing of what was asked is known.
        """
        start, whole = len(question.answer), question.text
        while True:
            agreed = _common(self.text, whole)
            if agreed < min(start, len(self.text)):
                return None
            if agreed < len(self.text) or len(whole) in self.places:
                return self._along(question)
            if reader.done():
                return self._at_the_end(question, reader)
            await self.changed.wait()

    def is_far_from(self, answer: bytes) -> bool:
        """Whether so much of the answer is another text that no draft of an asker's is to blame."""
        return len(answer) - _common(self.text, answer) > _MOST_DRAFT_BYTES

    def _at_the_end(
        self, question: Question, reader: asyncio.Task[None]
    ) -> tuple[Advice, ...] | None:
        found = self._along(question) if len(self.text) >= len(question.answer) else ()
        if not found and not reader.cancelled():
            reader.result()
        return found or None  # the answer is longer than what the cloud had to say

    def _along(self, question: Question) -> tuple[Advice, ...]:
        start, whole = len(question.answer), question.text
        end = max(len(whole), start + question.ahead_bytes)
        agreed = _common(self.text, whole)
        if agreed < len(whole):
            end = agreed  # behind this byte the draft is another text
        found = [a for at, a in sorted(self.places.items()) if start <= at <= end]
        if question.ahead_bytes and start not in self.places:
            rest = self._rest_of_token(start)
            found = [Advice(offset_bytes=start, candidates=(), said=rest), *found] if rest else []
        return tuple(found)

    def _rest_of_token(self, offset: int) -> bytes:
        """What the cloud's token goes on with that lies across `offset`."""
        before = max((at for at in self.places if at < offset), default=None)
        return self.places[before].said[offset - before :] if before is not None else b""

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self.changed.set()
        self.changed = asyncio.Event()


def _common(a: bytes, b: bytes) -> int:
    """Length of the common prefix."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])


def parse_event(data: bytes) -> tuple[list[Spoken], str | None]:
    """Tokens and finish reason of one event.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, RecursionError: malformed.
        CloudFailed: text without log-probabilities.
    """
    choices = json.loads(data)["choices"]
    if not choices:
        return [], None
    choice = choices[0]
    items = (choice.get("logprobs") or {}).get("content") or []
    if not items and (choice.get("delta") or {}).get("content"):
        raise CloudFailed("the cloud sends no logprobs: use an endpoint with top_logprobs")
    return [_spoken(item) for item in items], choice.get("finish_reason")


def _spoken(item: dict[str, Any]) -> Spoken:
    own = _candidate(item)
    listed = [_candidate(other) for other in item.get("top_logprobs") or []]
    if all((c.data, c.end) != (own.data, own.end) for c in listed):
        listed.append(own)
    listed.sort(key=lambda c: -c.log_prob)
    return Spoken(data=own.data, candidates=tuple(c for c in listed if c.data or c.end))


def _candidate(item: dict[str, Any]) -> Candidate:
    token, raw, log_prob = item["token"], item.get("bytes"), float(item["logprob"])
    if not math.isfinite(log_prob):
        raise ValueError("logprob is not finite")
    if token in _END_STRINGS:
        return Candidate(data=b"", log_prob=min(log_prob, 0.0), end=True)
    if raw is None and "\ufffd" in token:
        raise ValueError("a piece of a character without its bytes")
    data = bytes(raw) if raw is not None else token.encode("utf-8")
    return Candidate(data=data, log_prob=min(log_prob, 0.0))
