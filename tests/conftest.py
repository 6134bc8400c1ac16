"""Real models for tests, from the project's own cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _asset(name: str) -> Path:
    return Path(os.environ["FLOE_TEST_ASSETS"]) / name


@pytest.fixture(scope="session")
def slm_gguf() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _asset("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def cloud_gguf() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M."""
    return _asset("qwen.gguf")


@pytest.fixture(scope="session")
def wordllama_files() -> tuple[Path, Path]:
    """The embedding matrix and its tokenizer."""
    base = _asset("x/wordllama")
    return base / "weights/l2_supercat_256.safetensors", base / "tokenizers/l2_supercat_tokenizer_config.json"
