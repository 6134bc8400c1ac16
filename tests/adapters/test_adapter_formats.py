"""GGUF adapters, digests and mixes, against dense products as the slow twin."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.adapters.digest import content_digest
from floe.adapters.formats import balanced, read_lora_gguf, write_lora_gguf
from floe.adapters.lora import LoraPair, LoraTensors
from floe.adapters.mix import MixCache, compose, composing_pays, mix_digest
from floe.adapters.peft import read_peft
from floe.core import gguf
from floe.core.errors import BadAdapter
from floe.core.route import Route, Share

MODEL = toys.model()


def test_a_written_adapter_is_read_back_and_by_the_reference(tmp_path: Path) -> None:
    reference = pytest.importorskip("gguf")
    lora = toys.lora()
    path = tmp_path / "a.gguf"
    write_lora_gguf(path, lora, "llama", dtype=np.float32)
    back = read_lora_gguf(path, MODEL)
    for name, pair in lora.pairs.items():
        np.testing.assert_array_equal(toys.delta(back.pairs[name]), toys.delta(pair))
    reader = reference.GGUFReader(path)
    by_name = {t.name: t.data for t in reader.tensors}
    assert by_name["blk.0.attn_k.weight.lora_a"].shape == (3, 64)
    assert by_name["blk.0.attn_k.weight.lora_b"].shape == (32, 3)
    meta = {k: f.contents() for k, f in reader.fields.items()}
    assert (meta["general.type"], meta["adapter.type"]) == ("adapter", "lora")
    assert (meta["general.architecture"], meta["adapter.lora.alpha"]) == ("llama", 0.0)


def test_float16_keeps_a_tiny_b(tmp_path: Path) -> None:
    pair = toys.lora(names=("blk.0.attn_q",)).pairs["blk.0.attn_q"]
    tiny = LoraPair(a_RI=pair.a_RI, b_OR=pair.b_OR * np.float32(2e-7))
    lora = LoraTensors(architecture="llama", pairs={"blk.0.attn_q": tiny})
    write_lora_gguf(tmp_path / "a.gguf", lora, "llama")
    back = read_lora_gguf(tmp_path / "a.gguf", MODEL).pairs["blk.0.attn_q"]
    error = np.abs(toys.delta(back) - toys.delta(tiny)).max()
    assert error < 2e-3 * np.abs(toys.delta(tiny)).max()
    a_RI, b_OR = balanced(tiny)
    np.testing.assert_array_equal(b_OR @ a_RI, tiny.b_OR @ tiny.a_RI)


def test_values_beyond_float16_are_written_as_float32(tmp_path: Path) -> None:
    pair = toys.lora(names=("blk.0.attn_q",)).pairs["blk.0.attn_q"]
    a_RI, b_OR = np.zeros_like(pair.a_RI), np.zeros_like(pair.b_OR)
    a_RI[0, 0], b_OR[:, 0] = 2**20, pair.b_OR[:, 0] * np.float32(2**-20)
    b_OR[0, 1], a_RI[1] = 2**20, pair.a_RI[1] * np.float32(2**-20)
    huge = LoraPair(a_RI=a_RI, b_OR=b_OR)  # each is large, the product is not
    lora = LoraTensors(architecture="llama", pairs={"blk.0.attn_q": huge})
    write_lora_gguf(tmp_path / "a.gguf", lora, "llama")
    back = read_lora_gguf(tmp_path / "a.gguf", MODEL).pairs["blk.0.attn_q"]
    np.testing.assert_array_equal(back.b_OR @ back.a_RI, huge.b_OR @ huge.a_RI)


def user_gguf(path: Path, *, tensors: Any = None, **meta: Any) -> Path:
    """As convert_lora_to_gguf.py would write it; None in `meta` drops the key."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 16.0,
    }
    metadata = {k: v for k, v in (metadata | meta).items() if v is not None}
    pair = toys.lora(names=("blk.0.attn_q",)).pairs["blk.0.attn_q"]
    default = {
        "blk.0.attn_q.weight.lora_a": pair.a_RI,
        "blk.0.attn_q.weight.lora_b": pair.b_OR,
    }
    gguf.write(path, metadata, default if tensors is None else tensors)
    return path


def test_alpha_of_a_users_gguf_is_folded(tmp_path: Path) -> None:
    source = toys.lora(names=("blk.0.attn_q",)).pairs["blk.0.attn_q"]
    pair = read_lora_gguf(user_gguf(tmp_path / "a.gguf"), MODEL).pairs["blk.0.attn_q"]
    np.testing.assert_allclose(pair.b_OR, source.b_OR * np.float32(16 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.type": "model"}, "general.type is 'model', not 'adapter'"),
        ({"adapter.type": "control_vector"}, "adapter.type is"),
        ({"adapter.type": None}, "adapter.type is None: only 'lora'"),
        ({"general.architecture": "qwen2"}, "for architecture 'qwen2', the model's is 'llama'"),
        ({"adapter.lora.alpha": float("nan")}, "adapter.lora.alpha must be a finite number"),
        ({"adapter.lora.alpha": "8"}, "adapter.lora.alpha must be a finite number"),
        (
            {"tensors": {"blk.0.attn_q.weight.lora_a": np.full((2, 64), np.inf, np.float32),
                         "blk.0.attn_q.weight.lora_b": np.ones((64, 2), np.float32)}},
            "NaN or infinite",
        ),
        ({"general.base_model.0.name": "Other Model"}, "was trained on 'Other Model'"),
        ({"tensors": {}}, "holds no LoRA pair"),
        ({"tensors": {"x": np.ones(3, np.float32)}}, "x: is not a pair"),
        (
            {"tensors": {"output.weight.lora_a": np.ones((2, 2), np.float32),
                         "output.weight.lora_b": np.ones((2, 2), np.float32)}},
            "output: the model has no such linear layer",
        ),
        (
            {"tensors": {"x": gguf.RawTensor(shape=(32,), type=3, load=lambda: bytes(20))}},
            "ggml type id 3 cannot be read here",
        ),
    ],
)  # fmt: skip
def test_gguf_adapters_that_do_not_fit(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = user_gguf(tmp_path / "a.gguf", **changes)
    with pytest.raises(BadAdapter, match=re.escape(message)):
        read_lora_gguf(path, MODEL)


def test_any_base_softens_the_declared_name(tmp_path: Path) -> None:
    path = user_gguf(tmp_path / "a.gguf", **{"general.base_model.0.name": "Other Model"})
    assert read_lora_gguf(path, MODEL, any_base=True).base == "Other Model"


def test_alora_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    meta = {"general.architecture": "llama", "adapter.alora.invocation_tokens": [1]}
    gguf.write(path, meta, {})
    with pytest.raises(BadAdapter, match="only after certain tokens"):
        read_lora_gguf(path, MODEL)
    path.write_bytes(b"GGUF")
    with pytest.raises(BadAdapter, match="is truncated"):
        read_lora_gguf(path, MODEL)
    with pytest.raises(BadAdapter, match="cannot read"):
        read_lora_gguf(tmp_path / "none.gguf", MODEL)


# --- identity


def test_the_digest_knows_only_what_the_adapter_does(tmp_path: Path) -> None:
    values = toys.tensors()
    first = content_digest(read_peft(toys.folder(tmp_path / "a", values), MODEL))
    reordered = {k: values[k] for k in reversed(values)}
    renamed = {
        k.replace("lora_A", "lora_A.x").replace("lora_B", "lora_B.x"): v
        for k, v in reordered.items()
    }
    other_config = {"lora_dropout": 0.3, "target_modules": "all-linear", "use_rslora": False}
    second = content_digest(read_peft(toys.folder(tmp_path / "b", renamed, **other_config), MODEL))
    assert first == second
    changed = {
        **values,
        toys.key(0, "self_attn.q_proj", "A"): values[toys.key(0, "self_attn.q_proj", "A")] + 1,
    }
    others = [
        read_peft(toys.folder(tmp_path / "c", values, lora_alpha=9), MODEL),
        read_peft(toys.folder(tmp_path / "d", values), toys.model("qwen2")),
        read_peft(toys.folder(tmp_path / "e", changed), MODEL),
    ]
    assert len({first, *map(content_digest, others)}) == 4


def test_the_digest_separates_modules_and_shapes() -> None:
    a, b = np.ones((2, 4), np.float32), np.ones((4, 2), np.float32)
    one = LoraTensors(architecture="llama", pairs={"x": LoraPair(a_RI=a, b_OR=b)})
    two = LoraTensors(architecture="llama", pairs={"y": LoraPair(a_RI=a, b_OR=b)})
    swapped = LoraTensors(architecture="llama", pairs={"x": LoraPair(a_RI=b, b_OR=a)})
    assert len({content_digest(x) for x in (one, two, swapped)}) == 3


# --- mixes


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.floats(-2, 2, width=32),
            st.sets(st.sampled_from(sorted(MODEL.linears)), min_size=1),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_mix_is_the_weighted_sum_of_dense_products(parts: Any) -> None:
    loras = [
        (toys.lora(seed, rank, tuple(sorted(names))), weight)
        for seed, (rank, weight, names) in enumerate(parts)
    ]
    mixed = compose(loras)
    for name, (o, i) in MODEL.linears.items():
        dense = np.zeros((o, i))
        for lora, weight in loras:
            if name in lora.pairs:
                dense += weight * toys.delta(lora.pairs[name])
        if name in mixed.pairs:
            np.testing.assert_allclose(toys.delta(mixed.pairs[name]), dense, atol=1e-6)
        else:
            assert not dense.any()


def test_a_mix_needs_one_architecture_and_finite_weights() -> None:
    other = LoraTensors(architecture="qwen2", pairs=toys.lora().pairs)
    for parts in ([], [(toys.lora(), 1.0), (other, 1.0)], [(toys.lora(), float("inf"))]):
        with pytest.raises(ValueError, match="one architecture and finite weights"):
            compose(parts)


def test_when_composing_pays() -> None:
    assert not composing_pays(1, 10_000)
    assert not composing_pays(2, 17)
    assert composing_pays(2, 18)
    assert composing_pays(4, 6)
    assert composing_pays(2, 0, is_composed=True)


def mixes(folder: Path, max_bytes: int = 1 << 20) -> MixCache:
    return MixCache(
        folder=folder, tensors=lambda digest: toys.lora(int(digest)), max_bytes=max_bytes
    )


def key_of(*pairs: tuple[str, float]) -> Any:
    return Route(shares=tuple(Share(name=d, digest=d, weight=w) for d, w in pairs)).key


def test_a_composed_file_is_the_mix_and_is_reused(tmp_path: Path) -> None:
    cache, key = mixes(tmp_path), key_of(("2", 0.25), ("1", 0.5))
    assert not cache.has(key)
    with cache.composed(key) as path:
        back = read_lora_gguf(path, MODEL)
    dense = 0.5 * toys.delta(toys.lora(1).pairs["blk.0.attn_q"])
    dense += 0.25 * toys.delta(toys.lora(2).pairs["blk.0.attn_q"])
    np.testing.assert_allclose(toys.delta(back.pairs["blk.0.attn_q"]), dense, atol=1e-4)
    assert cache.has(key_of(("1", 0.5), ("2", 0.25)))
    with mixes(tmp_path).composed(key) as again:
        assert again == path


def test_a_changed_composed_file_is_composed_again(tmp_path: Path) -> None:
    cache, key = mixes(tmp_path), key_of(("1", 0.5), ("2", 0.5))
    with cache.composed(key) as path:
        good = path.read_bytes()
    path.write_bytes(good[:-4] + b"oops")
    with cache.composed(key) as path:
        assert path.read_bytes() == good
    assert cache.composed_count == 2


def test_one_composition_even_when_asked_concurrently(tmp_path: Path) -> None:
    cache, key = mixes(tmp_path), key_of(("1", 0.5), ("2", 0.5))
    start = threading.Barrier(6)

    def ask() -> Path:
        start.wait()
        with cache.composed(key) as path:
            return path

    with ThreadPoolExecutor(6) as pool:
        paths = {f.result() for f in [pool.submit(ask) for _ in range(6)]}
    assert len(paths) == 1
    assert cache.composed_count == 1


def test_composed_files_are_bounded_and_kept_while_used(tmp_path: Path) -> None:
    keys = [key_of(("1", 1.0), ("2", float(w))) for w in range(1, 5)]
    with mixes(tmp_path / "size").composed(keys[0]) as path:
        size = path.stat().st_size
    cache = mixes(tmp_path / "mix", max_bytes=2 * size)
    with cache.composed(keys[0]):
        for key in keys[1:]:
            with cache.composed(key):
                pass
        assert [cache.has(key) for key in keys] == [True, False, False, True]
    with cache.composed(keys[1]):
        pass
    assert [cache.has(key) for key in keys] == [False, True, False, True]


def test_a_failed_composition_leaves_nothing(tmp_path: Path) -> None:
    def broken(digest: str) -> LoraTensors:
        raise BadAdapter(f"adapter {digest} is gone")

    (tmp_path / ".left.new").touch()
    cache = MixCache(folder=tmp_path, tensors=broken, max_bytes=1)
    with pytest.raises(BadAdapter, match="adapter 1 is gone"), cache.composed(key_of(("1", 1.0))):
        pass
    assert list(tmp_path.iterdir()) == []
    assert len(mix_digest(())) == 64
