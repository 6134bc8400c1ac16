"""A PEFT folder to `LoraTensors`: every fault is found before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from floe.adapters import names
from floe.adapters.lora import (
    FloatArray,
    LoraPair,
    LoraTensors,
    base_fault,
    effect_faults,
    pair_faults,
    read_whole,
    refuse,
    sample,
)
from floe.adapters.peft_config import PeftConfig, read_config
from floe.adapters.safetensors import parse_safetensors
from floe.core.errors import BadAdapter
from floe.core.layer_names import interleave
from floe.core.model import ModelInfo

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "pytorch_model.bin")
_PREFIX = "base_model.model."
_KEY = re.compile(r"(?P<path>.+)\.lora_(?P<side>[AB])(\.(?!weight$)[^.]+)?\.weight")

# Parts of tensor names that tell what else was trained: what it is, and what to do.
_FOREIGN = (
    ("lora_magnitude_vector", "DoRA magnitudes. Merge it into the base, or train without DoRA"),
    ("lora_embedding_", "an embedding LoRA. Train without the embedding as target"),
    ("modules_to_save", "a whole module. Train with modules_to_save=null"),
    ("original_module", "a whole module. Train with modules_to_save=null"),
    ("token_adapter", "single embedding rows. Train without trainable_token_indices"),
    ("lm_head", "the output layer, which is not adapted here. Train without lm_head as target"),
    ("embed_tokens", "the embedding, which is not adapted here. Train without it, do not resize"),
    (".bias", "a bias. Train with bias='none' and lora_bias=false"),
)


def read_peft(folder: Path, model: ModelInfo, *, any_base: bool = False) -> LoraTensors:
    """The adapter in `folder`, scaled by PEFT's rules and named and ordered as in the GGUF.

    `any_base` accepts another declared base model; shapes must still fit.

    Raises:
        BadAdapter: with every fault found, each saying what to do.
    """
    weights = _find(folder)
    config, faults = read_config(folder / CONFIG)
    if not faults and not any_base:
        fault = (
            base_fault(config.base, model)
            if config.base
            else "names no base model (base_model_name_or_path). Add it, or add the adapter with "
            "--any-base"
        )
        faults += [fault] if fault else []
    if model.architecture not in names.KNOWN:
        faults.append(
            f"PEFT names are not known for architecture {model.architecture!r}. Convert it with "
            "llama.cpp's convert_lora_to_gguf.py and add the GGUF file"
        )
    tensors = parse_safetensors(read_whole(weights), source=str(weights))
    modules, key_faults = _modules(tensors, model)
    faults += key_faults
    plain = {name: LoraPair(a_RI=a, b_OR=b) for name, (_, a, b) in modules.items()}
    faults += pair_faults(plain, model) or effect_faults(plain)
    refuse(str(folder), faults)
    pairs = {n: _scaled(n, modules[n][0], pair, config, model) for n, pair in plain.items()}
    refuse(str(folder), _rank_faults(modules, config) + pair_faults(pairs, model))
    refuse(str(folder), effect_faults(pairs))
    return LoraTensors(
        architecture=model.architecture, pairs=pairs, base=config.base, notes=config.notes
    )


def _find(folder: Path) -> Path:
    """The weights file, if the folder holds exactly one adapter (bug-log A31, A40)."""
    if not folder.is_dir():
        raise BadAdapter(f"{folder} is no folder; expected one with {CONFIG} and {WEIGHTS}")
    present = sorted(p.name for p in folder.iterdir())
    candidates = [n for n in present if n.endswith(".safetensors")]
    pickles = [n for n in present if n in _PICKLES]
    checkpoints = [n for n in present if (folder / n / WEIGHTS).is_file()]
    faults = []
    if len(candidates) > 1:
        faults.append(
            f"holds several weight files ({', '.join(candidates)}), and which one is meant is "
            f"not certain. Keep only {WEIGHTS}"
        )
    elif candidates != [WEIGHTS] and pickles:
        faults.append(
            f"holds pickled weights ({', '.join(pickles)}), which can run code when loaded and "
            "are never opened. Save again with PEFT and safe_serialization=True"
        )
    elif candidates != [WEIGHTS] and checkpoints:
        faults.append(f"holds only checkpoints. Add one of them: {', '.join(checkpoints)}")
    elif candidates != [WEIGHTS]:
        faults.append(f"has no {WEIGHTS}; found: {sample(present, 6)}")
    if CONFIG not in present:
        faults.append(f"has no {CONFIG}; expected {CONFIG} and {WEIGHTS}")
    refuse(str(folder), faults)
    return folder / WEIGHTS


_Modules = dict[str, tuple[str, FloatArray, FloatArray]]


def _modules(tensors: Mapping[str, FloatArray], model: ModelInfo) -> tuple[_Modules, list[str]]:
    """GGUF name -> (HF path, A, B), and a fault for every tensor that is not used (A22)."""
    sides: dict[str, dict[str, FloatArray]] = {}
    faults: list[str] = []
    unknown: list[str] = []
    for key, tensor in tensors.items():
        meaning = next((why for part, why in _FOREIGN if part in key), None)
        match = _KEY.fullmatch(key)
        if meaning is not None:
            faults.append(f"tensor {key!r} is {meaning}")
        elif match is None:
            faults.append(f"tensor {key!r} is not a LoRA matrix. Save the adapter again with PEFT")
        else:
            pair = sides.setdefault(match["path"].removeprefix(_PREFIX), {})
            if match["side"] in pair:
                faults.append(f"tensor {key!r}: this module has two adapters. Save only one")
            pair[match["side"]] = tensor
    modules: _Modules = {}
    for path, pair in sides.items():
        name = names.gguf_name(path)
        if name is None or name not in model.linears:
            unknown.append(path)
        elif len(pair) < 2:
            faults.append(f"module {path!r} lacks its lora_{'A' if 'B' in pair else 'B'}")
        else:
            modules[name] = (path, pair["A"], pair["B"])
    return modules, faults + _unknown_faults(unknown, modules, model)


def _unknown_faults(unknown: list[str], modules: _Modules, model: ModelInfo) -> list[str]:
    known = sample(names.hf_path(name) for name in model.linears)
    if unknown:
        share = f"{len(unknown)} of its {len(unknown) + len(modules)} modules match"
        return [
            f"{share} nothing in this model. Its modules: {sample(unknown)}. The model's: {known}. "
            "It was trained on another model class"
        ]
    if not modules:
        return [f"holds no LoRA module. The model's modules: {known}"]
    return []


def _rank_faults(modules: _Modules, config: PeftConfig) -> list[str]:
    """Modules whose matrices and config disagree on the rank, which makes the scale a guess."""
    return [
        f"{path}: its matrices have rank {a_RI.shape[0]}, the config says {config.rank_of(path)}. "
        "Use the config it was saved with"
        for path, a_RI, _ in modules.values()
        if a_RI.shape[0] != config.rank_of(path)
    ]


def _scaled(name: str, path: str, pair: LoraPair, config: PeftConfig, model: ModelInfo) -> LoraPair:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by its value
        b_OR = pair.b_OR * np.float32(config.scale_of(path))
    if names.is_permuted(name, model.architecture):
        b_OR = interleave(b_OR, names.head_width(model))
    return LoraPair(a_RI=pair.a_RI, b_OR=b_OR)
