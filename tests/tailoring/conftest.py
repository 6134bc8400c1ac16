"""Tiny models of several layers, made once, and one thread for torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tailoring_cuts import load_model

from floe.tailoring.plan import ModelShape
from floe.testing.tiny_layers import TinyLayers, TinyShape, make_tiny_layers


@pytest.fixture(scope="session")
def layered(tmp_path_factory: pytest.TempPathFactory) -> TinyLayers:
    """Four layers, 2 KV heads of 2 query heads, FFN 96, five padded vocabulary rows."""
    shape = TinyShape(padded_rows=5, is_tied=True)
    return make_tiny_layers(tmp_path_factory.mktemp("layered"), shape)


@pytest.fixture(scope="session")
def with_biases(tmp_path_factory: pytest.TempPathFactory) -> TinyLayers:
    """A Qwen2-like one: biases of q, k, v and half-split rows."""
    return make_tiny_layers(tmp_path_factory.mktemp("biases"), TinyShape(biases=True), seed=1)


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(layered: TinyLayers, one_thread: None) -> Any:
    return load_model(layered.folder)


@pytest.fixture(scope="session")
def qwen_model(with_biases: TinyLayers, one_thread: None) -> Any:
    return load_model(with_biases.folder)


@pytest.fixture(scope="session")
def shape(model: Any) -> ModelShape:
    from floe.tailoring.on_torch.blocks import shape_of

    return shape_of(model, base_digest="d" * 64)


@pytest.fixture(scope="session")
def qwen_shape(qwen_model: Any) -> ModelShape:
    from floe.tailoring.on_torch.blocks import shape_of

    return shape_of(qwen_model, base_digest="e" * 64)
