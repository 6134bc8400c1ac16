"""Keep an answer here once it has become private, and its end while it may become so."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable
from dataclasses import replace

from floe.core.advice import Advice, Advise, Question
from floe.core.verdict import Verdict
from floe.privacy.unfinished import safe_end

_log = logging.getLogger(__name__)


def guarded(advise: Advise, inspect_draft: Callable[[str], Verdict]) -> Advise:
    """`advise`, asked only while the answer may leave the device, and only about what may.

    Before each ask the answer so far with its draft is inspected as text, without an incomplete
    UTF-8 tail. After one "local", or an inspector that raises, there is no advice for good and
    `advise` is never called again. An end that may be the beginning of a private value is not
    sent either: its places have no advice, until it has become something else. One guard serves
    one answer.
    """
    closed = False

    async def ask(question: Question) -> tuple[Advice, ...]:
        nonlocal closed
        if not closed and not _may_leave(question.text, inspect_draft):
            closed = True
        sent = None if closed else _without_beginnings(question)
        if sent is None:
            return ()
        found = await advise(sent)
        if closed:
            return ()
        if sent is question:
            return found
        return tuple(a for a in found if a.offset_bytes <= len(sent.text))

    return ask


def _may_leave(answer: bytes, inspect_draft: Callable[[str], Verdict]) -> bool:
    try:
        return inspect_draft(_text_of(answer)).may_leave is True
    except Exception as error:
        # Only the class: an error's message may quote the text.
        _log.error("the draft inspector failed (%s); the answer stays here", type(error).__name__)
        return False


def _without_beginnings(question: Question) -> Question | None:
    """The question up to where a value may begin; None when that is before the answer's end."""
    text = question.text.decode("utf-8", "surrogateescape")
    held_chars = len(text) - safe_end(text)
    if not held_chars:
        return question
    end = len(question.text) - len(text[-held_chars:].encode("utf-8", "surrogateescape"))
    if question.ends:  # a token begun is of use to nobody
        end = max((e for e in question.ends if e <= end), default=0)
    start = len(question.answer)
    if end < start:
        return None
    ends = tuple(e for e in question.ends if e <= end)
    return replace(question, draft=question.draft[: end - start], ends=ends)


def _text_of(answer: bytes) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(answer)
