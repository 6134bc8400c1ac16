"""A GLiNER model from disk as a detector; the door to gliner.

Built against its documented interface (`GLiNER.from_pretrained`, `predict_entities`); no model is
shipped or fetched, and the project's own tests run it with a stand-in only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from floe.core.errors import BadModel, Missing
from floe.privacy.base import Span

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "person": "PERSON",
        "street address": "STREET_ADDRESS",
        "phone number": "PHONE_NUMBER",
        "email address": "EMAIL_ADDRESS",
        "credit card number": "CREDIT_CARD",
        "bank account number": "BANK_ACCOUNT",
        "passport number": "PASSPORT",
        "driver's license number": "DRIVER_LICENSE",
        "social security number": "US_SSN",
        "tax identification number": "TAX_ID",
        "identity card number": "GOVERNMENT_ID",
        "date of birth": "DATE_OF_BIRTH",
        "medical record number": "MEDICAL_RECORD_NUMBER",
        "password": "PASSWORD",
        "ip address": "IP_ADDRESS",
    }
)
"""What the model is asked for, and the entity that each stands for."""
_CHUNK_CHARS, _OVERLAP_CHARS = 1000, 200
_SPACE = re.compile(r"\s")


class GlinerDetector:
    """A zero-shot model: labels in words, probabilities as scores. Texts are read in pieces."""

    name = "gliner"

    def __init__(
        self, *, model: Path, labels: Mapping[str, str] = LABELS, threshold: float = 0.5
    ) -> None:
        """Load a model from its folder, never from the network.

        Raises:
            Missing: gliner or the folder is not there.
            BadModel: the folder holds no such model.
        """
        if not model.is_dir():
            raise Missing(
                f"there is no GLiNER model in {model}: download one yourself and name its folder "
                "in privacy.ner_model"
            )
        try:
            from gliner import GLiNER
        except ImportError as error:
            raise Missing(
                "the GLiNER detector needs gliner. Install it with: pip install gliner"
            ) from error
        try:
            self._model: Any = GLiNER.from_pretrained(str(model), local_files_only=True)
        except Exception as error:
            raise BadModel(
                f"the GLiNER model in {model} cannot be loaded ({type(error).__name__})"
            ) from error
        self._labels = dict(labels)
        self._threshold = threshold

    def find(self, text: str) -> list[Span]:
        """Spans in code points of `text`, by start; one found in two pieces is given once."""
        found = {
            (span.entity, span.start, span.end): span
            for start, end in pieces(text)
            for span in self._in_piece(text[start:end], start)
        }
        return sorted(found.values(), key=lambda span: span.start)

    def _in_piece(self, piece: str, offset: int) -> Iterator[Span]:
        asked = list(self._labels)
        for row in self._model.predict_entities(piece, asked, threshold=self._threshold):
            yield Span(
                entity=self._labels[row["label"]],
                start=offset + int(row["start"]),
                end=offset + int(row["end"]),
                score=float(row["score"]),
                recogniser=self.name,
            )


def pieces(text: str) -> list[tuple[int, int]]:
    """[start, end) of overlapping pieces, cut at white space where there is any."""
    found, start = [], 0
    while start < len(text):
        end = min(start + _CHUNK_CHARS, len(text))
        if end < len(text):
            spaces = [m.start() for m in _SPACE.finditer(text, start + _CHUNK_CHARS // 2, end)]
            end = spaces[-1] if spaces else end
        found.append((start, end))
        start = len(text) if end == len(text) else end - _OVERLAP_CHARS
    return found
