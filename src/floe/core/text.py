"""Bytes of tokens to text that is only ever appended to: UTF-8 tails and stop strings held back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turn token bytes into final text.

    Holds back an incomplete UTF-8 tail (bug-log A41, A43), flushes bytes that can never become
    valid as U+FFFD (A44), and holds a suffix only while it may still begin a stop string (A46,
    A49). What was emitted is never taken back (A47).
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(s for s in stop if s)
        self._held = ""
        self.stopped = False

    def feed(self, data: bytes) -> str:
        """The text that became final with `data`; empty once a stop string was met."""
        if self.stopped:
            return ""
        return self._release(self._held + self._decoder.decode(data))

    def finish(self) -> str:
        """What is still held back at the end of the stream."""
        if self.stopped:
            return ""
        text = self._release(self._held + self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text if self.stopped else text + rest

    def _release(self, text: str) -> str:
        met = [(at + len(s), at) for s in self._stop if (at := text.find(s)) >= 0]
        if met:
            # the stop that is complete first, so that the pieces' borders change nothing
            self.stopped, self._held = True, ""
            return text[: min(met)[1]]
        hold = max((_partial(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def _partial(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
