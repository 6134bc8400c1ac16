"""The five adapters that come with Floe: what the card says of them, the files must bear out."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import floe.adapters
from floe.adapters.digest import content_digest
from floe.adapters.source import read_source
from floe.engine.llamacpp import LlamaCppEngine
from floe.routing.embed import shipped_background

NAMES = ("code", "finance", "law", "maths", "medicine")
FOLDER = Path(floe.adapters.__file__).parent / "shipped"
FILES = {"adapter_config.json", "adapter_model.safetensors", "card.json", "centroid.json"}
MAX_BYTES = 2_500_000
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
WEIGHTS = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
LAYERS, WIDTH, KV_WIDTH = 30, 576, 192


def read(name: str, file: str) -> dict[str, Any]:
    return json.loads((FOLDER / name / file).read_text(encoding="utf-8"))


def test_all_five_are_there() -> None:
    assert tuple(sorted(p.name for p in FOLDER.iterdir() if p.is_dir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_are_few_and_small(name: str) -> None:
    paths = list((FOLDER / name).rglob("*"))
    assert {p.name for p in paths} == FILES
    assert sum(p.stat().st_size for p in paths) < MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_config_names_base_and_rank(name: str) -> None:
    config = read(name, "adapter_config.json")
    assert config["base_model_name_or_path"] == BASE
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    assert config["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert not config["use_dora"]
    assert not config["modules_to_save"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_whole_and_alive(name: str) -> None:
    """120 pairs of the right shapes in half precision, finite, and no B that is still zero."""
    tensors = load_file(FOLDER / name / "adapter_model.safetensors")
    outs = {"q_proj": WIDTH, "k_proj": KV_WIDTH, "v_proj": KV_WIDTH, "o_proj": WIDTH}
    wanted = {}
    for layer in range(LAYERS):
        for module, n_out in outs.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            wanted[f"{stem}.lora_A.weight"] = (8, WIDTH)
            wanted[f"{stem}.lora_B.weight"] = (n_out, 8)
    assert {k: v.shape for k, v in tensors.items()} == wanted
    assert {v.dtype for v in tensors.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(v).all() for v in tensors.values())
    assert all(v.any() for v in tensors.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_on_unseen_examples_fell(name: str) -> None:
    card = read(name, "card.json")
    assert card["name"] == name
    assert card["held_out_examples"] >= 60
    assert 0 < card["held_out_loss_after"] < card["held_out_loss_before"]
    assert card["best_step"] > 0
    for key in ("description", "data_source", "data_licence", "data_attribution", "data_split"):
        assert card[key]


@pytest.mark.parametrize("name", NAMES)
def test_b35_the_centroid_belongs_to_the_encoder(name: str) -> None:
    """The digest of the pinned weights and of the background that ships: change one, redo these."""
    background = shipped_background(WEIGHTS)
    assert background is not None
    vector = np.array(background.vector, dtype="<f4").tobytes()
    centroid = read(name, "centroid.json")
    assert centroid["encoder_digest"] == hashlib.sha256(WEIGHTS.encode() + vector).hexdigest()
    assert len(centroid["vector"]) == 256
    assert math.isclose(np.linalg.norm(centroid["vector"]), 1, abs_tol=1e-3)
    assert centroid["prompts"] >= read(name, "card.json")["train_examples"]


def test_centroids_differ() -> None:
    vectors = np.array([read(name, "centroid.json")["vector"] for name in NAMES])
    assert (vectors @ vectors.T - np.eye(len(NAMES))).max() < 0.6


def test_adapters_differ() -> None:
    heads = [load_file(FOLDER / n / "adapter_model.safetensors") for n in NAMES]
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    assert len({h[key].tobytes() for h in heads}) == len(NAMES)


def test_the_model_card_says_what_the_cards_say() -> None:
    """docs/adapters-card.md is read by people; its figures are those of the files."""
    text = (Path(__file__).parents[2] / "docs" / "adapters-card.md").read_text(encoding="utf-8")
    for name in NAMES:
        card = read(name, "card.json")
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        cells = [c.strip() for c in row.strip("|").split("|")]
        assert cells[1:] == [
            str(card["train_examples"]),
            str(card["validation_examples"]),
            str(card["held_out_examples"]),
            str(card["held_out_answer_tokens"]),
            str(card["best_step"]),
            f"{card['held_out_loss_before']:.4f}",
            f"{card['held_out_loss_after']:.4f}",
            f"{card['held_out_first_token_loss_before']:.4f}",
            f"{card['held_out_first_token_loss_after']:.4f}",
        ]
        assert card["data_licence"] in text


def test_the_listed_digests_are_those_of_the_files(slm_gguf: Path) -> None:
    """They are taken for signed where signatures are required, so they must be the true ones."""
    engine = LlamaCppEngine(slm_gguf, threads=1)
    try:
        found = {n: content_digest(read_source(FOLDER / n, engine.info).lora) for n in NAMES}
    finally:
        engine.close()
    assert json.loads((FOLDER / "digests.json").read_text()) == found
