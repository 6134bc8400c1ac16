"""Cache type, flash attention and batch size of the engine's contexts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from floe.core.errors import BadConfig
from floe.engine.llamacpp import LlamaCppEngine
from floe.testing.tiny_model import TinyModel, make_tiny_model

PROMPT = list(range(5, 120))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def last(path: Path, **settings: object) -> np.ndarray:
    engine = LlamaCppEngine(path, threads=1, context_tokens=256, **settings)  # type: ignore[arg-type]
    try:
        return engine.session().result().feed(PROMPT)
    finally:
        engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_type": "F32"},
        {"kv_type": "F16", "flash_attention": False},
        {"batch_tokens": 32},
        {"kv_type": "F32", "flash_attention": False, "batch_tokens": 64},
    ],
)
def test_settings_change_rounding_only(tiny: TinyModel, settings: dict[str, object]) -> None:
    exact = last(tiny.gguf, kv_f32=True)
    np.testing.assert_allclose(last(tiny.gguf, **settings), exact, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_type": "Q4_0"}, "not one of F16, F32, Q8_0"),
        ({"kv_type": "Q8_0", "flash_attention": False}, "needs model.flash_attention"),
        ({"kv_type": "Q8_0"}, "this model's heads do not fill"),  # heads of 16
        ({"batch_tokens": 8}, "must be 32 or more"),
    ],
)
def test_what_llama_would_abort_on_is_refused(
    tiny: TinyModel, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(BadConfig, match=words):
        last(tiny.gguf, **settings)


def test_q8_cache_of_a_real_model(slm_gguf: Path) -> None:
    f16, q8 = (last(slm_gguf, digest="x", kv_type=kv) for kv in ("F16", "Q8_0"))
    assert int(f16.argmax()) == int(q8.argmax())
    assert 0 < float(np.abs(f16 - q8)[np.argsort(f16)[-20:]].max()) < 1.0
