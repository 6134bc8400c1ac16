"""A conversation with the cloud in which it sees placeholders, while the SLM sees the values.

Every question is translated before it leaves and every advice on its way back. Placeholders are
the SLM's alone: where the cloud wants one, or the SLM is inside a value, there is no advice.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from floe.core.advice import Advice, Advise, Candidate, Question
from floe.core.request import Request
from floe.core.verdict import Verdict
from floe.privacy.masking import mask_request
from floe.privacy.values import Values

_reason: ContextVar[str] = ContextVar("floe_egress_reason", default="verdict: allow")


def egress_reason() -> str:
    """Why the bytes that are being sent may leave, for the ledger."""
    return _reason.get()


def for_cloud(request: Request, verdict: Verdict) -> tuple[Request, Callable[[Advise], Advise]]:
    """`answer.Mask`: the request that may leave, and how questions about its answer are put.

    Raises:
        CannotMask: the gate gives no `mask` verdict for such texts.
    """
    sent, values = mask_request(request, verdict)
    entities = ", ".join(sorted({f.entity for f in verdict.findings}))
    return sent, lambda advise: masked(advise, values, entities=entities)


def masked(advise: Advise, values: Values, *, entities: str = "") -> Advise:
    """`advise`, asked about the answer with placeholders for its values.

    An end of the text that may become a value is not sent (its places have no advice), nor is an
    incomplete character. Offsets of what comes back are those of the original answer. The ledger's
    reason names the `entities` that were masked.
    """
    reason = f"verdict: mask ({entities})" if entities else "verdict: mask"
    starts = _starts(values)

    async def ask(question: Question) -> tuple[Advice, ...]:
        view = _view(question, values)
        sent = view.question(question)
        if sent is None or values.held_in(view.sent.decode("utf-8", "surrogateescape")):
            return ()
        with _sending(reason):
            found = await advise(sent)
        return tuple(_returned(found, sent, view, starts))

    return ask


@contextmanager
def _sending(reason: str) -> Iterator[None]:
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """Bytes [start, end) of the answer that are sent as they are, from `sent_start` on."""

    start: int
    end: int
    sent_start: int


@dataclass(frozen=True, kw_only=True)
class _View:
    """An answer as the cloud may see it: plain stretches, a placeholder between each two.

    `whole` = up to the last byte of the answer and its draft.
    """

    sent: bytes
    plain: tuple[_Plain, ...]
    whole: bool

    def question(self, question: Question) -> Question | None:
        """The same question about `sent`; None when none of its places can be asked about."""
        start = len(question.answer)
        at = next((max(p.start, start) for p in self.plain if start <= p.end), None)
        if at is None:
            return None
        cut = self._sent_of(at)
        ends = question.ends if len(self.plain) == 1 else ()  # placeholders are no tokens
        return replace(
            question,
            answer=self.sent[:cut],
            draft=self.sent[cut:],
            ends=tuple(e for e in ends if e <= len(self.sent)),
        )

    def original_of(self, offset: int) -> int | None:
        """The place in the answer; None inside a placeholder, or behind a cut."""
        last = self.plain[-1]
        if offset > len(self.sent):
            return last.start + offset - last.sent_start if self.whole else None
        for p in self.plain:
            if p.sent_start <= offset <= p.sent_start + p.end - p.start:
                return p.start + offset - p.sent_start
        return None

    def _sent_of(self, place: int) -> int:
        part = next(p for p in self.plain if p.start <= place <= p.end)
        return part.sent_start + place - part.start


def _view(question: Question, values: Values) -> _View:
    """What may be sent: up to where a value may begin, or the last end of a token before it."""
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(question.text)
    cover = values.cover(text)
    parts: list[_Plain] = []
    sent, start, at = bytearray(), 0, 0
    for begin, end, placeholder in [*cover.places, (cover.safe_end, cover.safe_end, "")]:
        piece = text[at:begin].encode("utf-8", "surrogateescape")
        parts.append(_Plain(start=start, end=start + len(piece), sent_start=len(sent)))
        sent += piece + placeholder.encode()
        start += len(piece) + len(text[begin:end].encode("utf-8", "surrogateescape"))
        at = end
    view = _View(sent=bytes(sent), plain=tuple(parts), whole=start == len(question.text))
    return view if view.whole or not question.ends else _cut(view, question.ends)


def _cut(view: _View, ends: tuple[int, ...]) -> _View:
    """Up to the last end that lies in a plain stretch: a token begun is of use to nobody."""
    safe_end = view.plain[-1].end
    end = max((e for e in ends if e <= safe_end), default=0)
    while not any(p.start <= end <= p.end for p in view.plain):
        end = max((e for e in ends if e < end), default=0)
    kept = [p for p in view.plain if p.start <= end]
    last = replace(kept[-1], end=end)
    sent_end = last.sent_start + last.end - last.start
    return _View(sent=view.sent[:sent_end], plain=(*kept[:-1], last), whole=False)


def _starts(values: Values) -> frozenset[bytes]:
    """Every beginning of every placeholder, whole ones included."""
    encoded = [p.encode() for p in values.placeholders]
    return frozenset(p[:n] for p in encoded for n in range(1, len(p) + 1))


def _returned(
    found: tuple[Advice, ...], sent: Question, view: _View, starts: frozenset[bytes]
) -> Iterator[Advice]:
    """Advice at places of the answer, as far as the cloud does not speak of placeholders."""
    said = sent.text
    for advice in found:
        place = view.original_of(advice.offset_bytes)
        before = said[: advice.offset_bytes] if advice.offset_bytes <= len(said) else b""
        if advice.said and _touches(before, advice.said, starts):
            if advice.offset_bytes >= len(sent.text):
                return  # what the cloud says from here on has other offsets here
            place = None
        kept = _own_words(advice.candidates, before, starts)
        if place is not None and (kept or advice.said):
            yield replace(advice, offset_bytes=place, candidates=kept)
        if advice.offset_bytes == len(said):
            said += advice.said


def _own_words(
    candidates: tuple[Candidate, ...], before: bytes, starts: frozenset[bytes]
) -> tuple[Candidate, ...]:
    """Without those that begin a placeholder; nothing at all where one is the likeliest."""
    kept = tuple(c for c in candidates if not _touches(before, c.data, starts))
    best = max(candidates, key=lambda c: c.log_prob, default=None)
    return kept if best in kept else ()


def _touches(before: bytes, data: bytes, starts: frozenset[bytes]) -> bool:
    """Whether `data` ends in, or holds, a placeholder's bytes that were not there before."""
    longest = max(map(len, starts), default=0)
    text = before[-longest:] + data
    if b"[" not in text:
        return False
    for end in range(len(text) - len(data) + 1, len(text) + 1):
        for n in range(1, min(longest, end) + 1):
            piece = text[end - n : end]
            if piece in starts and (end == len(text) or piece.endswith(b"]")):
                return True
    return False
