"""The model's products in 8 bits: the same labels as in 4, and files that are none."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from floe.privacy.ner import NerFiles
from floe.privacy.ner_int8 import _fields, _int8, _packed, with_int8

SENTENCES = (
    "My son John Miller lives at 5 Elm Street, Springfield.",
    "What is the capital of France?",
    "Call Aino Virtanen on +358 40 123 4567 or write to aino@example.org before Friday.",
    "Billing address: Sara Schwarz, 28245 Puruntie 82 Apt. 595, 53650 Lappeenranta",
    "The build failed because the lock file is older than the manifest.",
)


def test_the_labels_are_those_of_the_original(rampart_files: NerFiles) -> None:
    original = rampart_files.model.read_bytes()
    tokenizer = Tokenizer.from_file(str(rampart_files.tokenizer))
    tokenizer.no_padding()
    sessions = [
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for model in (original, with_int8(original))
    ]
    same = total = 0
    for sentence in SENTENCES:
        ids = np.array([tokenizer.encode(sentence).ids], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feed["token_type_ids"] = np.zeros_like(ids)
        names = {i.name for i in sessions[0].get_inputs()}
        rows = [
            s.run(None, {k: v for k, v in feed.items() if k in names})[0][0].argmax(axis=-1)
            for s in sessions
        ]
        same += int((rows[0] == rows[1]).sum())
        total += len(rows[0])
    assert same / total >= 0.97


def test_nothing_is_left_in_four_bits(rampart_files: NerFiles) -> None:
    original = rampart_files.model.read_bytes()
    rewritten = with_int8(original)
    assert original.count(b"MatMulNBits") >= 37
    assert b"MatMulNBits" not in rewritten
    assert with_int8(rewritten) == rewritten


@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.integers(0, 2**63) | st.binary(max_size=300)),
        max_size=20,
    )
)
def test_fields_survive(fields: list[tuple[int, int | bytes]]) -> None:
    found = [(n, v if isinstance(v, int) else bytes(v)) for n, v in _fields(_packed(fields))]
    assert found == fields


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_codes_are_the_nearest(n: int, k: int, seed: int) -> None:
    weights_NK = np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)
    weights_NK[0] = 0.0
    codes_KN, scales_N = _int8(weights_NK)
    assert np.abs(codes_KN).max() <= 63
    assert np.all(np.abs(codes_KN.T * scales_N[:, None] - weights_NK) <= scales_N[:, None] * 0.501)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (b"\x3a\x05ab", "ends early"),
        (b"\xff", "ends early"),
        (b"\x3b\x00", "no ONNX model"),
        (b"\x38\x01", "a message was expected"),
    ],
)
def test_what_is_no_model_is_refused(model: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        with_int8(model)


def test_weights_in_another_form_are_refused() -> None:
    node = _packed(
        [(1, b"x"), (1, b"w"), (1, b"s"), (4, b"MatMulNBits")]
        + [
            (5, _packed([(1, name), (3, value)]))
            for name, value in ((b"K", 32), (b"N", 1), (b"bits", 4), (b"block_size", 32))
        ]
    )
    tensor = _packed([(8, b"w"), (5, 7)])
    model = _packed([(7, _packed([(1, node), (5, tensor)]))])
    with pytest.raises(ValueError, match="not stored as raw bytes"):
        with_int8(model)
