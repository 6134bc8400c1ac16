"""An `AdapterState` as a PEFT folder and back: what every other tool can load.

The scale is folded into B, so the folder says lora_alpha = r and every reader's alpha / r is 1
(bug-log C19, C20).

Legend as in `update.py`.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter
from floe.core.files import atomic_write
from floe.federated.update import AdapterState, Factors, FloatArray

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CARD, CENTROID = "card.json", "centroid.json"
Fact = float | int | str | None

_PREFIX = "base_model.model."
_KEY = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<side>[AB])\.weight")
_DIGEST = "base_digest"
_MAX_BYTES = 1 << 30
_MAX_CONFIG_BYTES = 1 << 20


def write_peft_folder(
    state: AdapterState,
    folder: Path,
    base_name: str,
    *,
    facts: Mapping[str, Fact] | None = None,
    centroid: Centroid | None = None,
) -> Path:
    """Write `state` as a PEFT folder and return it; the config comes last, each file whole.

    `base_name` is the Hugging Face name of the base ("HuggingFaceTB/SmolLM2-135M-Instruct").
    `facts` lie beside it in card.json ("description" is shown in listings), `centroid` in
    centroid.json; `AdapterStore.add` reads both. Modules of rank 0 are left out.

    Raises:
        BadAdapter: no module of rank 1 or more, factors that are no matrices of one rank, or
            values that are not finite.
    """
    modules = {path: f for path, f in sorted(state.modules.items()) if f.a_RI.size and f.b_OR.size}
    if not modules:
        raise BadAdapter("the adapter to write has no module of rank 1 or more. Train it first")
    for path, factors in modules.items():
        _check(path, factors)
    arrays = {}
    for path, factors in modules.items():
        arrays[f"{_PREFIX}{path}.lora_A.weight"] = np.ascontiguousarray(factors.a_RI, np.float32)
        arrays[f"{_PREFIX}{path}.lora_B.weight"] = np.ascontiguousarray(factors.b_OR, np.float32)
    metadata = {"format": "pt", _DIGEST: state.base_digest}
    _write(folder / WEIGHTS, safetensors.numpy.save(arrays, metadata=metadata))
    if facts:
        _write(folder / CARD, _json(dict(facts)))
    if centroid is not None:
        note = {"encoder_digest": centroid.encoder_digest, "vector": list(centroid.vector)}
        _write(folder / CENTROID, _json(note))
    _write(folder / CONFIG, _json(_config(modules, base_name)))
    return folder


def read_peft_folder(folder: Path, *, base_digest: str = "") -> AdapterState:
    """The adapter in a PEFT folder, its scale folded into B.

    `base_digest` holds where the folder does not name one (PEFT itself writes none).

    Raises:
        BadAdapter: unreadable, damaged, another base digest than `base_digest`, or other tensors
            than LoRA matrices.
    """
    config, data = _read_config(folder / CONFIG), _read(folder / WEIGHTS, _MAX_BYTES)
    try:
        arrays = safetensors.numpy.load(data)
        (size,) = struct.unpack_from("<Q", data)
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadAdapter(f"{folder / WEIGHTS} is damaged. Copy it again") from error
    found = metadata.get(_DIGEST) or base_digest
    if base_digest and found != base_digest:
        raise BadAdapter(f"{folder} is for the base {found[:12]}, not {base_digest[:12]}")
    sides: dict[str, dict[str, FloatArray]] = {}
    for key, array in arrays.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise BadAdapter(f"{folder / WEIGHTS}: tensor {key!r} is not a LoRA matrix")
        sides.setdefault(match["path"], {})[match["side"]] = array.astype(np.float32)
    return AdapterState(
        base_digest=found,
        modules={path: _factors(path, pair, config) for path, pair in sorted(sides.items())},
    )


def _factors(path: str, pair: Mapping[str, FloatArray], config: Mapping[str, Any]) -> Factors:
    if len(pair) < 2:
        raise BadAdapter(f"module {path!r} lacks its lora_{'A' if 'B' in pair else 'B'}")
    r = config["rank_pattern"].get(path, config["r"])
    alpha = config["alpha_pattern"].get(path, config["lora_alpha"])
    factors = Factors(a_RI=pair["A"], b_OR=pair["B"] * np.float32(alpha / r))
    _check(path, factors)
    if factors.rank != r:
        raise BadAdapter(f"module {path!r} has rank {factors.rank}, its config says {r}")
    return factors


def _check(path: str, factors: Factors) -> None:
    a_RI, b_OR = factors.a_RI, factors.b_OR
    if a_RI.ndim != 2 or b_OR.ndim != 2 or a_RI.shape[0] != b_OR.shape[1]:
        raise BadAdapter(
            f"module {path!r}: A {a_RI.shape} and B {b_OR.shape} are no factors of one rank"
        )
    if not (np.isfinite(a_RI).all() and np.isfinite(b_OR).all()):
        raise BadAdapter(f"module {path!r} holds NaN or infinite values. Its training diverged")


def _config(modules: Mapping[str, Factors], base_name: str) -> dict[str, Any]:
    """PEFT's fields; a rank that most modules share is `r`, the others are named."""
    ranks = {path: factors.rank for path, factors in modules.items()}
    common = Counter(ranks.values()).most_common(1)[0][0]
    others = {path: rank for path, rank in ranks.items() if rank != common}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": common,
        "lora_alpha": common,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": False,
    }


def _read_config(path: Path) -> dict[str, Any]:
    """`r`, `lora_alpha` and their patterns; exact module paths only."""
    try:
        data = json.loads(_read(path, _MAX_CONFIG_BYTES))
        config = {"r": int(data["r"]), "lora_alpha": float(data["lora_alpha"])}
        patterns = {
            name: {str(k): float(v) for k, v in (data.get(name) or {}).items()}
            for name in ("rank_pattern", "alpha_pattern")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAdapter(f"{path} is not the config of a LoRA") from error
    if data.get("use_rslora") or data.get("use_dora"):
        raise BadAdapter(f"{path} asks for rsLoRA or DoRA, which devices do not learn together")
    if config["r"] < 1 or any(rank < 1 for rank in patterns["rank_pattern"].values()):
        raise BadAdapter(f"{path}: r must be 1 or more")
    return {**config, **patterns}


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise BadAdapter(f"there is no file {path}")
        if path.stat().st_size > max_bytes:
            raise BadAdapter(f"{path} is larger than {max_bytes} bytes")
        return path.read_bytes()
    except OSError as error:
        raise BadAdapter(f"cannot read {path}: {error.strerror}") from error


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, indent=2, allow_nan=False).encode()


def _write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)
