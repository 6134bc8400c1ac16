"""The static embedding against plain numpy on the real files, and refusals of bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from floe.core.adapter import Centroid
from floe.core.errors import BadModel, BadRequest
from floe.core.files import sha256_file
from floe.routing.centroid import centroid_of
from floe.routing.embed import StaticEmbedding, shipped_background

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def embedding(wordllama_files: Files) -> StaticEmbedding:
    weights, tokenizer = wordllama_files
    return StaticEmbedding(weights=weights, tokenizer=tokenizer, digest="d" * 64)


@pytest.fixture(scope="module")
def slow(wordllama_files: Files) -> tuple[NDArray[np.float16], Tokenizer]:
    weights, tokenizer = wordllama_files
    (matrix,) = load_file(weights).values()
    return matrix, Tokenizer.from_file(str(tokenizer))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=300))
def test_a_vector_is_the_mean_of_its_tokens_rows(
    embedding: StaticEmbedding, slow: tuple[NDArray[np.float16], Tokenizer], text: str
) -> None:
    matrix, tokenizer = slow
    total = np.zeros(256)
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:512]
    for token in ids:
        total += matrix[token].astype(np.float64)
    length = np.linalg.norm(total)
    expected = total / length if length else total
    assert embedding(text) == pytest.approx(expected, abs=1e-4)


def test_vectors_have_length_one_and_the_right_kind(embedding: StaticEmbedding) -> None:
    vector = embedding("How many apples are left?")
    assert vector.shape == (embedding.width,) == (256,)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1)


def test_an_empty_text_is_zero(embedding: StaticEmbedding) -> None:
    assert not embedding("").any()


def test_only_the_first_512_tokens_count(embedding: StaticEmbedding) -> None:
    head = "word " * 600
    assert np.array_equal(embedding(head), embedding(head + "unrelated " * 10_000))


def test_half_a_surrogate_pair_is_no_error(embedding: StaticEmbedding) -> None:
    assert np.linalg.norm(embedding("ab \ud83d cd")) == pytest.approx(1)


def test_meaning_shows(embedding: StaticEmbedding) -> None:
    tumour = embedding("Does the drug reduce tumour growth in patients?")
    cancer = embedding("Is chemotherapy effective against cancer?")
    loop = embedding("Write a Python function that reverses a list.")
    assert tumour @ cancer > tumour @ loop + 0.2


@pytest.fixture(scope="module")
def own(wordllama_files: Files) -> StaticEmbedding:
    """With the background that ships."""
    weights, tokenizer = wordllama_files
    digest = sha256_file(weights)
    return StaticEmbedding(
        weights=weights, tokenizer=tokenizer, digest=digest, background=shipped_background(digest)
    )


def test_the_background_is_taken_away(own: StaticEmbedding, embedding: StaticEmbedding) -> None:
    background = shipped_background(
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
    )
    assert background is not None
    rest = embedding("How many apples are left?") - np.array(background.vector)
    assert own("How many apples are left?") == pytest.approx(rest / np.linalg.norm(rest), abs=1e-5)
    assert not own("").any()


def test_b35_another_background_is_another_embedding(
    own: StaticEmbedding, wordllama_files: Files
) -> None:
    weights, tokenizer = wordllama_files
    other = StaticEmbedding(
        weights=weights,
        tokenizer=tokenizer,
        digest="d" * 64,
        background=Centroid(encoder_digest="d" * 64, vector=(0.1,) * 256),
    )
    assert len({own.digest, other.digest, "d" * 64, sha256_file(weights)}) == 4


def test_b35_a_background_of_other_weights_is_refused(wordllama_files: Files) -> None:
    weights, tokenizer = wordllama_files
    assert shipped_background("e" * 64) is None
    for background in (
        Centroid(encoder_digest="e" * 64, vector=(0.1,) * 256),
        Centroid(encoder_digest="d" * 64, vector=(0.1,) * 4),
    ):
        with pytest.raises(BadModel, match=r"background was made with other weights than .*256"):
            StaticEmbedding(
                weights=weights, tokenizer=tokenizer, digest="d" * 64, background=background
            )


def test_the_matrix_is_mapped_not_read(embedding: StaticEmbedding) -> None:
    assert isinstance(embedding._matrix_VD, np.memmap)
    assert embedding._matrix_VD.dtype == np.float16


def test_bad_files_are_refused_by_name(tmp_path: Path, wordllama_files: Files) -> None:
    weights, tokenizer = wordllama_files
    bad = tmp_path / "bad.safetensors"

    def opens(message: str, *, tok: Path = tokenizer) -> None:
        with pytest.raises(BadModel, match=message):
            StaticEmbedding(weights=bad, tokenizer=tok, digest="")

    opens("bad.safetensors cannot be read as a safetensors file")
    bad.write_bytes(b"\xff" * 100)
    opens("bad.safetensors is not a safetensors file")
    bad.write_bytes((4).to_bytes(8, "little") + b"oops")
    opens("cannot be read as a safetensors file")
    save_file({"a": np.zeros((2, 2), np.float32)}, bad)
    opens("must hold one F16 matrix and nothing else")
    save_file({"a": np.zeros((2, 2), np.float16), "b": np.zeros((2, 2), np.float16)}, bad)
    opens("must hold one F16 matrix and nothing else")
    save_file({"a": np.zeros((2, 2), np.float16)}, bad)
    opens("has 32000 tokens, .* only 2 rows: they do not belong together")
    bad.write_bytes(bad.read_bytes()[:-2])
    opens("is cut short or has a wrong header")
    bad.write_bytes(weights.read_bytes())
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps({"a": 1}))
    opens("tokenizer.json is not a tokenizer file", tok=other)


def test_a_centroid_is_the_direction_of_the_mean(embedding: StaticEmbedding) -> None:
    prompts = ["two plus two", "three times four is a long sum", ""]
    centroid = centroid_of(prompts, embedding)
    expected = embedding(prompts[0]).astype(np.float64) + embedding(prompts[1])
    assert centroid.vector == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)
    assert np.linalg.norm(centroid.vector) == pytest.approx(1)
    assert centroid.encoder_digest == embedding.digest


def test_a_centroid_of_nothing_is_refused(embedding: StaticEmbedding) -> None:
    for prompts in ([], [""]):
        with pytest.raises(BadRequest, match="needs at least one prompt with content"):
            centroid_of(prompts, embedding)
