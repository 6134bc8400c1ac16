"""Which part of a growing answer has not been inspected yet."""

from __future__ import annotations

import threading
from collections import OrderedDict

_REACH_CHARS = 512
_MAX_TEXTS = 64


class DraftMemory:
    """Answers that were found clean, so that only what may have changed is inspected again.

    A finding that ends in new text begins at most `_REACH_CHARS` before it, or in the word that
    stands there: the tail begins at white space. Texts stay in memory only, the last 64 of them.
    """

    def __init__(self) -> None:
        self._clean: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def tail_start(self, text: str) -> int:
        """Index from which `text` has to be inspected; 0 when nothing of it is known."""
        with self._lock:
            known = max((len(t) for t in self._clean if text.startswith(t)), default=0)
        start = known - _REACH_CHARS
        while start > 0 and not text[start].isspace():
            start -= 1
        return max(0, start)

    def remember(self, text: str) -> None:
        """Note that the whole of `text` is clean; replaces the texts that it continues."""
        with self._lock:
            for known in [t for t in self._clean if text.startswith(t)]:
                del self._clean[known]
            self._clean[text] = None
            while len(self._clean) > _MAX_TEXTS:
                self._clean.popitem(last=False)
