"""PEFT itself as the reference for scale, rank_pattern, alpha_pattern and rsLoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest

from floe.adapters.names import hf_path, is_permuted
from floe.adapters.peft import read_peft
from floe.core.layer_names import interleave

pytest.importorskip("peft", reason="needs the extra `train`")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True, "r": 6, "lora_alpha": 5},
        {
            "rank_pattern": {"layers.1.self_attn.q_proj": 7, "down_proj": 2},
            "alpha_pattern": {"q_proj": 3, r".*\.0\.mlp\..*": 11, "model.layers.1.mlp.up_proj": 1},
        },
        {
            "use_rslora": True,
            "rank_pattern": {r"0\.self_attn\.[qk]_proj": 9, "q_proj": 5},
            "alpha_pattern": {"proj": 40, "attn.q_proj": 2, "(k|v)_proj": 6},
        },
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a14_a16_products_equal_pefts_own(tmp_path: Path, options: dict[str, Any]) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=toys.VOCAB, hidden_size=toys.WIDTH, intermediate_size=toys.FFN,
            num_hidden_layers=toys.LAYERS, num_attention_heads=toys.HEADS,
            num_key_value_heads=toys.KV_HEADS,
        )
    )  # fmt: skip
    fields = {"r": 4, "lora_alpha": 6, **options}
    wrapped = get_peft_model(
        base,
        LoraConfig(
            target_modules=[m.split(".")[1] for m in toys.SHAPES], init_lora_weights=False,
            base_model_name_or_path="tiny-toy", task_type="CAUSAL_LM", **fields,
        ),
    )  # fmt: skip
    wrapped.save_pretrained(str(tmp_path))
    for architecture in ("llama", "qwen2"):
        lora = read_peft(tmp_path, toys.model(architecture), any_base=True)
        assert len(lora.pairs) == toys.LAYERS * len(toys.SHAPES)
        for name, pair in lora.pairs.items():
            layer = wrapped.get_submodule(f"base_model.model.{hf_path(name)}")
            expected = layer.get_delta_weight("default").detach().numpy()
            if is_permuted(name, architecture):
                expected = interleave(expected, toys.WIDTH // toys.HEADS)
            np.testing.assert_allclose(pair.b_OR @ pair.a_RI, expected, rtol=1e-5, atol=1e-6)
