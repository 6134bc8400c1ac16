from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.adapters.source import read_source
from floe.adapters.store import AdapterStore
from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter
from floe.core.model import ModelInfo
from floe.federated.peft_folder import read_peft_folder, write_peft_folder
from floe.federated.update import AdapterState, Factors

SHAPES = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "mlp.down_proj": (64, 96)}
GGUF = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down"}


def info() -> ModelInfo:
    return ModelInfo(
        name="tiny-toy",
        digest="0" * 64,
        architecture="qwen2",  # rows are not permuted there: what is read is what was written
        n_layers=2,
        width=64,
        n_heads=4,
        n_kv_heads=2,
        n_vocab=97,
        context_tokens=128,
        eos_ids=frozenset({0}),
        tokenizer_digest="t",
        chat_template=None,
        names=frozenset({"tiny-toy"}),
        linears={f"blk.{i}.{GGUF[m]}": s for i in range(2) for m, s in SHAPES.items()},
    )


def state(ranks: tuple[int, ...], seed: int = 0) -> AdapterState:
    rng = np.random.default_rng(seed)
    paths = [f"model.layers.{i}.{m}" for i in range(2) for m in SHAPES]
    modules = {}
    for path, rank in zip(paths, ranks, strict=True):
        o, i = SHAPES[path.split(".", 3)[3]]
        modules[path] = Factors(
            a_RI=rng.normal(0, 0.1, (rank, i)).astype(np.float32),
            b_OR=rng.normal(0, 0.1, (o, rank)).astype(np.float32),
        )
    return AdapterState(base_digest="ab" * 32, modules=modules)


@given(ranks=st.tuples(*[st.integers(1, 5)] * 6), seed=st.integers(0, 3))
def test_what_is_written_is_read_again(
    ranks: tuple[int, ...], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = state(ranks, seed)
    folder = write_peft_folder(before, tmp_path_factory.mktemp("peft"), "Toys/Tiny-Toy")
    after = read_peft_folder(folder)
    assert after.base_digest == before.base_digest
    assert sorted(after.modules) == sorted(before.modules)
    for path, factors in before.modules.items():
        np.testing.assert_array_equal(after.modules[path].a_RI, factors.a_RI)
        np.testing.assert_array_equal(after.modules[path].b_OR, factors.b_OR)


def test_c19_c20_the_store_reads_the_same_products(tmp_path: Path) -> None:
    before = state((2, 3, 1, 2, 4, 2))
    folder = write_peft_folder(before, tmp_path / "f", "Toys/Tiny-Toy")
    lora = read_source(folder, info()).lora
    for path, factors in before.modules.items():
        layer, module = path.split(".")[2], path.split(".", 3)[3]
        pair = lora.pairs[f"blk.{layer}.{GGUF[module]}"]
        np.testing.assert_allclose(
            pair.b_OR @ pair.a_RI, factors.b_OR @ factors.a_RI, rtol=0, atol=1e-6
        )


def test_card_and_centroid_reach_the_store(tmp_path: Path) -> None:
    centroid = Centroid(encoder_digest="e", vector=(0.6, 0.8))
    folder = write_peft_folder(
        state((2,) * 6), tmp_path / "f", "Toys/Tiny-Toy",
        facts={"description": "learned by 4 devices", "rounds": 3}, centroid=centroid,
    )  # fmt: skip
    stored = AdapterStore(tmp_path / "store", info()).add(folder, name="medicine")
    assert stored.manifest.centroid == centroid
    assert stored.manifest.description == "learned by 4 devices"
    assert stored.manifest.facts["rounds"] == 3
    assert stored.manifest.rank == 2


def test_peft_itself_loads_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = torch.nn.Linear(64, 64, bias=False)
            self.k_proj = torch.nn.Linear(64, 32, bias=False)

    factors = {
        "q_proj": Factors(
            a_RI=np.full((3, 64), 0.01, np.float32), b_OR=np.full((64, 3), 0.1, np.float32)
        ),
        "k_proj": Factors(
            a_RI=np.full((1, 64), 0.02, np.float32), b_OR=np.full((32, 1), 0.1, np.float32)
        ),
    }
    folder = write_peft_folder(
        AdapterState(base_digest="d", modules=factors), tmp_path / "f", "toy"
    )
    config = peft.LoraConfig.from_pretrained(str(folder))
    config.task_type = config.base_model_name_or_path = None
    model = peft.get_peft_model(Attention(), config)
    weights = peft.utils.load_peft_weights(str(folder))
    peft.set_peft_model_state_dict(model, weights)
    for name, f in factors.items():
        delta = getattr(model.base_model.model, name).get_delta_weight("default")
        np.testing.assert_allclose(delta.detach().numpy(), f.b_OR @ f.a_RI, atol=1e-7)


def test_what_cannot_be_an_adapter_is_not_written(tmp_path: Path) -> None:
    bad = state((1,) * 6)
    path = next(iter(bad.modules))
    a, b = bad.modules[path].a_RI, bad.modules[path].b_OR
    cases = {
        "no module of rank 1": {},
        "NaN or infinite": {path: Factors(a_RI=a * np.float32("nan"), b_OR=b)},
        "no factors of one rank": {path: Factors(a_RI=a, b_OR=np.hstack([b, b]))},
    }
    for text, modules in cases.items():
        with pytest.raises(BadAdapter, match=text):
            write_peft_folder(AdapterState(base_digest="d", modules=modules), tmp_path / "x", "b")
    assert not (tmp_path / "x" / "adapter_config.json").exists()


def test_what_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_peft_folder(state((2,) * 6), tmp_path / "f", "b")
    with pytest.raises(BadAdapter, match="for the base abab"):
        read_peft_folder(folder, base_digest="c" * 64)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole, data = weights.read_bytes(), json.loads(config.read_text())
    weights.write_bytes(whole[:-4])
    with pytest.raises(BadAdapter, match="is damaged"):
        read_peft_folder(folder)
    weights.write_bytes(whole.replace(b"lora_A", b"lora_C"))
    with pytest.raises(BadAdapter, match="is not a LoRA matrix"):
        read_peft_folder(folder)
    weights.write_bytes(whole)
    for change, text in (
        ({"r": 3}, "has rank 2, its config says 3"),
        ({"r": 0}, "r must be 1 or more"),
        ({"use_rslora": True}, "rsLoRA or DoRA"),
        ({"lora_alpha": "x"}, "is not the config of a LoRA"),
    ):
        config.write_text(json.dumps({**data, **change}))
        with pytest.raises(BadAdapter, match=text):
            read_peft_folder(folder)
    config.unlink()
    with pytest.raises(BadAdapter, match="there is no file"):
        read_peft_folder(folder)
