"""Random legal plans and cuts of the tiny model, shared by the tests of pruning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from floe.tailoring.base import LayerImportance
from floe.tailoring.cut import make_cut
from floe.tailoring.plan import Cut, LayerPlan, ModelShape, Plan


def random_importance(shape: ModelShape, *, seed: int) -> tuple[LayerImportance, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        LayerImportance(
            kv_K=rng.random(shape.n_kv_heads),
            q_KG=rng.random((shape.n_kv_heads, shape.q_per_kv)),
            ffn_F=rng.random(shape.n_ffn),
            attention=1.0,
            ffn=1.0,
            block=2.0,
        )
        for _ in range(shape.n_layers)
    )


def plan_of(shape: ModelShape, *layers: tuple[int, int, int]) -> Plan:
    """(n_kv_heads, q_per_kv, n_ffn) of each layer."""
    parts = tuple(LayerPlan(n_kv_heads=k, q_per_kv=q, n_ffn=f) for k, q, f in layers)
    return Plan(base_digest=shape.base_digest, layers=parts)


def cut_of(shape: ModelShape, *layers: tuple[int, int, int], seed: int = 0) -> Cut:
    return make_cut(plan_of(shape, *layers), shape, random_importance(shape, seed=seed))


def plan_of_cut(cut: Cut, shape: ModelShape) -> Plan:
    """The plan that a cut carries out."""
    layers = [(0, 0, 0)] * shape.n_layers
    for part in cut.layers:
        kv = len(part.kv_heads)
        layers[part.layer] = (kv, len(part.q_heads) // kv if kv else 0, len(part.ffn))
    return plan_of(shape, *layers)


def cuts(shape: ModelShape) -> st.SearchStrategy[Cut]:
    """Every legal plan, among them layers without attention, without FFN, and dropped ones."""
    one = st.tuples(
        st.integers(0, shape.n_kv_heads),
        st.integers(1, shape.q_per_kv),
        st.sampled_from(sorted({*range(0, shape.n_ffn, 32), shape.n_ffn})),
    )
    plans = st.lists(one, min_size=shape.n_layers, max_size=shape.n_layers)
    kept = plans.filter(lambda p: any(k or f for k, _, f in p))
    return st.builds(lambda p, s: cut_of(shape, *p, seed=s), kept, st.integers(0, 99))


def load_model(folder: Path, **options: Any) -> Any:
    """The model of a Hugging Face folder in float32, without gradients."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    settings = {"dtype": torch.float32, **options}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, **settings
    )
    return model.eval().requires_grad_(False)


def load_here(folder: Path) -> Any:
    """As the automatic classes do, but with the code of this process instead of the folder's."""
    from floe.tailoring.on_torch import tailored_modeling

    kind = json.loads((folder / "config.json").read_text())["model_type"]
    own = {
        "tailored_llama": tailored_modeling.TailoredLlamaForCausalLM,
        "tailored_qwen2": tailored_modeling.TailoredQwen2ForCausalLM,
    }
    if kind not in own:
        return load_model(folder, dtype="auto")
    return own[kind].from_pretrained(folder, dtype="auto", local_files_only=True).eval()


def reload_here(folder: Path, texts: Sequence[Sequence[int]]) -> Any:
    """Log-probabilities of a folder's model, in this process."""
    from floe.tailoring.on_torch.reload import log_probs_of

    return log_probs_of(load_here(folder), texts)
