"""The NER model's files, from the project's own cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from floe.models.cache import PulledModel
from floe.privacy.ner import NerFiles


@pytest.fixture(scope="session")
def rampart_files(pulled: Callable[[str], PulledModel]) -> NerFiles:
    """Rampart's ONNX model, tokenizer and configuration."""
    files = pulled("rampart-ner").files
    return NerFiles(model=files["model"], tokenizer=files["tokenizer"], config=files["config"])
