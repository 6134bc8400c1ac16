"""Private matters that no pattern sees, told in plain words: "my sister is in the oncology ward".

A linear score over each window of a text. It knows English and Chinese; docs/privacy-card.md
says how it was trained and where it falls short.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadModel
from floe.privacy.base import Span
from floe.privacy.normalise import normalise
from floe.privacy.semantic_features import features, windows
from floe.privacy.semantic_head import Head, shipped_head

FloatArray = NDArray[np.float32]

ENTITY = "PRIVATE_MATTER"
_CACHED_WINDOWS = 4096
_WEAK = 0.25  # spans below are not worth telling


class Encoder(Protocol):
    """Texts to unit vectors of one width; another `digest` means other vectors."""

    @property
    def digest(self) -> str:
        """What tells this encoder from any other."""
        ...

    def __call__(self, text: str) -> FloatArray:
        """The text's direction, shape (D,), length 1; zeros for a text without words."""
        ...


class SemanticDetector:
    """Scores windows of up to 400 characters; scores of one half and more count at the gate.

    Pure but for a memory of scores by digest. Safe to share between threads.
    """

    name = "semantic"

    def __init__(
        self,
        *,
        encoder: Encoder,
        head: Head | None = None,
        threshold: float = 0.0,
    ) -> None:
        """`threshold`: a probability in (0, 1); 0 = the head's own.

        Raises:
            BadModel: the head was trained with another encoder (bug-log B35), or is damaged.
        """
        self._head = head or shipped_head()
        if self._head.encoder_digest != encoder.digest:
            raise BadModel(
                "the semantic head was trained with another embedding "
                f"({self._head.encoder_digest[:12]}) than this one ({encoder.digest[:12]}). "
                "Train it again: python scripts/train_semantic.py"
            )
        self._encoder = encoder
        self.threshold = threshold or self._head.threshold
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, text: str) -> list[Span]:
        """Windows that may count, with scores from 0.25; [start, end) in code points of `text`."""
        copy = normalise(text, fold=False)
        found: list[Span] = []
        for start, end in windows(copy.text):
            score = self._scaled(self._probability(copy.text[start:end]))
            if score >= _WEAK:
                first, last = copy.original(start, end)
                found.append(
                    Span(entity=ENTITY, start=first, end=last, score=score, recogniser=self.name)
                )
        return found

    def probability(self, text: str) -> float:
        """The highest calibrated probability of any window; 0 for an empty text."""
        clean = normalise(text, fold=False).text
        return max((self._probability(clean[a:b]) for a, b in windows(clean)), default=0.0)

    def _scaled(self, probability: float) -> float:
        """The threshold becomes one half, linear on both sides."""
        if probability >= self.threshold:
            return 0.5 + 0.5 * (probability - self.threshold) / (1 - self.threshold)
        return 0.5 * probability / self.threshold

    def _probability(self, window: str) -> float:
        # Kept by digest: the memory holds nothing that a user wrote.
        key = hashlib.blake2b(window.encode("utf-8", "replace"), digest_size=16).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        probability = self._computed(window)
        with self._lock:
            self._known[key] = probability
            while len(self._known) > _CACHED_WINDOWS:
                self._known.popitem(last=False)
        return probability

    def _computed(self, window: str) -> float:
        seen = features(window, known_words=self._head.known_words)
        vector_D = None if seen.is_chinese else self._encoder(window)
        logit = self._head.logit(seen, vector_D)
        if not math.isfinite(logit):
            raise ValueError("the semantic score is not finite")
        return self._head.probability(logit)
