"""Keep an answer here once it has become private."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable

from floe.core.advice import Advice, Advise, Question
from floe.core.verdict import Verdict

_log = logging.getLogger(__name__)


def guarded(advise: Advise, inspect_draft: Callable[[str], Verdict]) -> Advise:
    """`advise`, asked only while the answer may leave the device.

    Before each ask the answer so far with its draft is inspected as text, without an incomplete
    UTF-8 tail. After one "local", or an inspector that raises, there is no advice for good and
    `advise` is never called again. One guard serves one answer.
    """
    closed = False

    async def ask(question: Question) -> tuple[Advice, ...]:
        nonlocal closed
        if not closed and not _may_leave(question.text, inspect_draft):
            closed = True
        if closed:
            return ()
        found = await advise(question)
        return () if closed else found

    return ask


def _may_leave(answer: bytes, inspect_draft: Callable[[str], Verdict]) -> bool:
    try:
        return inspect_draft(_text_of(answer)).may_leave is True
    except Exception as error:
        # Only the class: an error's message may quote the text.
        _log.error("the draft inspector failed (%s); the answer stays here", type(error).__name__)
        return False


def _text_of(answer: bytes) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(answer)
