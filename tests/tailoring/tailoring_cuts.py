"""Random legal plans and cuts of the tiny model, shared by the tests of pruning."""

from __future__ import annotations

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
