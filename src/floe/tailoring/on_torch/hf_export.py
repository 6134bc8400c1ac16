"""A pruned model as a Hugging Face folder that stock tools load, checked before it is there.

Everything the configuration says of sizes is read off the tensors (bug-log D04). Layers that are
all alike make a plain Llama or Qwen2; otherwise `tailored_modeling.py` travels with the weights.
The folder is written aside, loaded again in a process of its own, its log-probabilities compared,
and only then given its name.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from floe.core.errors import BadModel, BadPlan, FloeError
from floe.core.files import folder_digest, sync_folder
from floe.tailoring.on_torch import tailored_modeling
from floe.tailoring.on_torch.blocks import Model, Tensor, layers_of
from floe.tailoring.on_torch.reload import Logits, log_probs_of, reload_in_child
from floe.tailoring.plan import Cut
from floe.tailoring.plan_file import write_cut

CUT_FILE = "floe_cut.json"
TOLERANCE = 1e-3
"""Largest difference in log-probabilities after reloading; the same sums in the same precision."""

_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
)  # fmt: skip
_SIZES = {"n_heads": 0, "n_kv_heads": 0, "n_ffn": 0}
_CODE = "tailored_modeling"
_CLASSES = {"llama": "Llama", "qwen2": "Qwen2"}


@dataclass(frozen=True, kw_only=True)
class HfExport:
    """What was written: `is_plain` means that no code of ours is needed to load it."""

    folder: Path
    digest: str
    is_plain: bool
    max_error: float


def export_hf(
    model: Model,
    target: Path,
    *,
    source: Path,
    cut: Cut,
    reload: Callable[[Path, Sequence[Sequence[int]]], Logits] = reload_in_child,
    tolerance: float = TOLERANCE,
) -> HfExport:
    """Write the pruned `model` to `target`, with the tokenizer's files of the folder `source`.

    `cut` is what it was pruned by; its index map is written beside the weights (bug-log D11), and
    the sizes of the tensors must be the cut's (D10). `model` is what `prune` gave, trained or not.

    Raises:
        BadPlan: the target exists, or the model has other sizes than the cut.
        BadModel: the reloaded folder computes something else; nothing is left behind.
    """
    if target.exists():
        raise BadPlan(f"{target} exists; give a new folder, or remove it first")
    state, sizes = _state(model), layer_sizes(model)
    _check_sizes(sizes, cut)
    is_plain, config = _config(model, state, sizes, cut)
    if is_plain:
        _fill_biases(state, config, sizes)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        save_file(state, work / "model.safetensors", metadata={"format": "pt"})
        (work / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        for name in _COPIED:
            if (source / name).is_file():
                shutil.copy(source / name, work / name)
        if not is_plain:
            shutil.copy(Path(tailored_modeling.__file__), work / f"{_CODE}.py")
        write_cut(work / CUT_FILE, cut)
        error = _compare(model, reload(work, _probe(model)), tolerance)
        for file in work.iterdir():
            _sync(file)
        digest = folder_digest(work)
        work.chmod(0o755)
        work.replace(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return HfExport(folder=target, digest=digest, is_plain=is_plain, max_error=error)


def layer_sizes(model: Model) -> list[dict[str, Any]]:
    """Sizes and output biases of each layer, read off its tensors."""
    width = _head_width(model)
    found = []
    for layer in layers_of(model):
        size: dict[str, Any] = {**_SIZES, "attention_out_bias": False, "ffn_out_bias": False}
        out = getattr(layer.self_attn, "o_proj", None)
        if out is not None:
            size["n_heads"] = layer.self_attn.q_proj.weight.shape[0] // width
            size["n_kv_heads"] = layer.self_attn.k_proj.weight.shape[0] // width
            size["attention_out_bias"] = out.bias is not None
        down = getattr(layer.mlp, "down_proj", None)
        if down is not None:
            size["n_ffn"] = int(down.weight.shape[1])
            size["ffn_out_bias"] = down.bias is not None
        found.append(size)
    return found


def _head_width(model: Model) -> int:
    config = model.config.to_dict()
    given = config.get("head_dim")
    return int(given or config["hidden_size"] // config["num_attention_heads"])


def _state(model: Model) -> dict[str, Tensor]:
    """The tensors to write; a tied head is written once.

    Raises:
        BadModel: the configuration ties the head, the tensors do not.
    """
    state = {name: t.detach().contiguous().cpu() for name, t in model.state_dict().items()}
    if model.config.tie_word_embeddings and "lm_head.weight" in state:
        head = state.pop("lm_head.weight")
        if not torch.equal(head, state["model.embed_tokens.weight"]):
            raise BadModel(
                "the model's head and embeddings differ though its configuration ties them; "
                "untie them in the configuration"
            )
    shared: dict[int, str] = {}
    for name, tensor in state.items():
        if shared.setdefault(tensor.data_ptr(), name) != name and tensor.numel():
            state[name] = tensor.clone()  # safetensors refuses two names for one memory
    return state


def _check_sizes(sizes: Sequence[Mapping[str, Any]], cut: Cut) -> None:
    if len(sizes) != len(cut.layers):
        raise BadPlan(f"the model has {len(sizes)} layers, the cut {len(cut.layers)}")
    for i, (size, part) in enumerate(zip(sizes, cut.layers, strict=True)):
        built = tuple(size[name] for name in _SIZES)
        asked = (len(part.q_heads), len(part.kv_heads), len(part.ffn))
        if built != asked:
            raise BadPlan(
                f"layer {i} was built with (query heads, KV heads, FFN) {built}, asked were "
                f"{asked}; nothing was written"
            )


def _config(
    model: Model, state: Mapping[str, Tensor], sizes: Sequence[Mapping[str, Any]], cut: Cut
) -> tuple[bool, dict[str, Any]]:
    config = dict(model.config.to_dict())
    family = config["model_type"].removeprefix("tailored_")
    rows, width = state["model.embed_tokens.weight"].shape
    config |= {
        "vocab_size": int(rows),
        "hidden_size": int(width),
        "num_hidden_layers": len(sizes),
        "head_dim": cut.head_width,
        "dtype": str(state["model.embed_tokens.weight"].dtype).removeprefix("torch."),
    }
    for name in ("_name_or_path", "layer_types", "max_window_layers", "auto_map", "layer_sizes"):
        config.pop(name, None)
    first = sizes[0]
    is_plain = (
        all({k: s[k] for k in _SIZES} == {k: first[k] for k in _SIZES} for s in sizes)
        and all(first[name] for name in _SIZES)
        and int(width) % first["n_heads"] == 0  # transformers' own rule
        and (family == "llama" or not any(_has_out_bias(s) for s in sizes))
    )
    if is_plain:
        config |= {"model_type": family, "architectures": [_CLASSES[family] + "ForCausalLM"]}
        config["num_attention_heads"] = first["n_heads"]
        config["num_key_value_heads"] = first["n_kv_heads"]
        config["intermediate_size"] = first["n_ffn"]
        if family == "llama":
            config["attention_bias"] = any(s["attention_out_bias"] for s in sizes)
            config["mlp_bias"] = any(s["ffn_out_bias"] for s in sizes)
        return True, config
    name = f"Tailored{_CLASSES[family]}"
    config |= {
        "model_type": f"tailored_{family}",
        "architectures": [f"{name}ForCausalLM"],
        "layer_sizes": [dict(s) for s in sizes],
        "auto_map": {
            "AutoConfig": f"{_CODE}.{name}Config",
            "AutoModelForCausalLM": f"{_CODE}.{name}ForCausalLM",
        },
    }
    return False, config


def _has_out_bias(size: Mapping[str, Any]) -> bool:
    return bool(size["attention_out_bias"] or size["ffn_out_bias"])


def _fill_biases(
    state: dict[str, Tensor], config: Mapping[str, Any], sizes: Sequence[Mapping[str, Any]]
) -> None:
    """Llama has all biases of a half or none: zeros where compensation left one out."""
    wanted = {
        "attention_bias": [f"self_attn.{p}_proj" for p in "qkvo"],
        "mlp_bias": [f"mlp.{p}_proj" for p in ("gate", "up", "down")],
    }
    for key, modules in wanted.items():
        if not config.get(key):
            continue
        for i in range(len(sizes)):
            for module in modules:
                name = f"model.layers.{i}.{module}"
                weight = state[f"{name}.weight"]
                state.setdefault(f"{name}.bias", torch.zeros(weight.shape[0], dtype=weight.dtype))


def _probe(model: Model) -> list[list[int]]:
    """Two fixed texts of token ids."""
    rows = int(model.get_input_embeddings().weight.shape[0])
    rng = np.random.default_rng(7)
    return [rng.integers(0, rows, n).tolist() for n in (16, 5)]


def _compare(model: Model, reloaded: Logits, tolerance: float) -> float:
    own: list[NDArray[np.float32]] = log_probs_of(model, _probe(model))
    if [a.shape for a in own] != [b.shape for b in reloaded]:
        raise BadModel("the reloaded model gives other shapes than the one that was saved")
    error = max(float(np.abs(a - b).max()) for a, b in zip(own, reloaded, strict=True))
    if not error <= tolerance:
        raise BadModel(
            f"the reloaded model differs by {error:.3g} from the one that was saved (at most "
            f"{tolerance:g}); nothing was written"
        )
    return error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FloeError(f"cannot write {path} to the disk: {error.strerror}") from error
    finally:
        os.close(descriptor)
