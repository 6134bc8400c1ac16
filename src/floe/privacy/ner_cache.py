"""Findings by text, the last ones used, within a bound on texts and characters."""

from __future__ import annotations

import threading
from collections import OrderedDict

from floe.privacy.base import Span


class Remembered:
    """A cache that forgets what was not used longest; in memory only, safe between threads."""

    def __init__(self, *, max_entries: int, max_chars: int) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._found: OrderedDict[str, tuple[Span, ...]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def get(self, text: str) -> tuple[Span, ...] | None:
        """What was found in `text`; None where that is not known."""
        with self._lock:
            if text in self._found:
                self._found.move_to_end(text)
            return self._found.get(text)

    def put(self, text: str, spans: tuple[Span, ...]) -> None:
        """Keep what was found in `text`, unless it alone is over the bound."""
        if len(text) > self._max_chars:
            return
        with self._lock:
            if text not in self._found:
                self._chars += len(text)
            self._found[text] = spans
            self._found.move_to_end(text)
            while len(self._found) > self._max_entries or self._chars > self._max_chars:
                self._chars -= len(self._found.popitem(last=False)[0])
