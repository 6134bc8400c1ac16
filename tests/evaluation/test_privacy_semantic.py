"""The figures on held-out items, and that nothing trained on stands among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from floe.evaluation.privacy_semantic import held_out_items, semantic_figures
from floe.models.cache import PulledModel
from floe.privacy.base import Span
from floe.privacy.semantic import SemanticDetector
from floe.routing.embed import StaticEmbedding

SCRIPTS = Path(__file__).parents[2] / "scripts"


class Always:
    """Finds the same in every text."""

    def __init__(self, score: float) -> None:
        self._score = score

    def find(self, text: str) -> list[Span]:
        return [Span(entity="X", start=0, end=1, score=self._score, recogniser="always")]


def test_the_held_out_figures_hold(pulled: Callable[[str], PulledModel]) -> None:
    found = pulled("wordllama-256")
    encoder = StaticEmbedding(
        weights=found.files["weights"], tokenizer=found.files["tokenizer"], digest=found.digest
    )
    figures = semantic_figures(SemanticDetector(encoder=encoder))
    assert figures["semantic_recall"] >= 0.927
    assert figures["semantic_fpr"] <= 0.10
    assert figures["semantic_recall_privacylens_statements"] >= 0.80
    assert figures["semantic_recall_zh"] >= 0.86
    assert figures["semantic_fpr_zh"] <= 0.10


def test_shares_are_those_of_a_detector_that_finds_all_or_nothing() -> None:
    everything, nothing = semantic_figures(Always(0.5)), semantic_figures(Always(0.49))
    for name in everything:
        if "_n_" in name:
            assert everything[name] == nothing[name] > 0
        else:
            assert (everything[name], nothing[name]) == (1.0, 0.0)
    n_private = sum(
        everything[f"semantic_n_recall_{s}"]
        for s in ("privacylens_cases", "confaide_3", "confaide_4")
    )
    assert n_private > 300


def test_no_template_sentence_of_the_test_is_one_of_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from semantic.sources import split_of
    from semantic.templates import lines, sentences

    held_out = {i.text for i in held_out_items() if i.source.startswith("templates_")}
    assert len(held_out) > 300
    trained = [
        sentence
        for language in ("en", "zh")
        for kind in ("private", "general", "train_private", "train_general")
        for template in lines(kind, language)
        if kind.startswith("train") or split_of(template, 0.6, 0.15) != "test"
        for sentence in sentences(template, language, 12)
    ]
    assert not held_out & set(trained)
