"""adapter_config.json: what it asks for, and everything in it that cannot be honoured."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floe.core.errors import BadAdapter

_MAX_CONFIG_BYTES = 1 << 20
_MAX_PATTERNS, _MAX_PATTERN_CHARS, _MAX_WILDCARDS = 4096, 200, 4

# Keys that cannot change what a trained LoRA computes, whatever their value.
HARMLESS = frozenset(
    [
        "auto_mapping",
        "peft_version",
        "revision",
        "inference_mode",
        "target_modules",
        "exclude_modules",
        "lora_dropout",
        "layers_to_transform",
        "layers_pattern",
        "megatron_core",
        "runtime_config",
        "eva_config",
        "qalora_group_size",
        "ensure_weight_tying",
    ]
)
# Keys that are read here or checked below.
USED = frozenset(
    [
        "peft_type",
        "task_type",
        "base_model_name_or_path",
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "init_lora_weights",
        "bias",
    ]
)
# Keys that are refused when they hold a value: what they mean, and what to do.
REFUSED = {
    "use_dora": "DoRA is not supported. Merge it into the base, or train with use_dora=false",
    "modules_to_save": "whole modules were trained too. Train with modules_to_save=null",
    "trainable_token_indices": "single embedding rows were trained. Train without them",
    "fan_in_fan_out": "transposed (Conv1D) layers are not supported. Use false for Linear layers",
    "lora_bias": "a bias beside B is not supported. Train with lora_bias=false",
    "target_parameters": "single parameters were targeted. Train with target_modules only",
    "layer_replication": "layers were replicated. Serve the enlarged model as the base instead",
    "use_qalora": "QA-LoRA pools its inputs. Train with use_qalora=false",
    "alora_invocation_tokens": "it is active only after certain tokens, which is not supported",
    "loftq_config": "LoftQ changes the base weights. Train on the plain base",
}
_MOVES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """The fields of a LoRA config that change what it computes."""

    base: str | None
    r: int
    alpha: float
    rslora: bool = False
    rank_pattern: Mapping[str, float] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def rank_of(self, path: str) -> float:
        """The rank PEFT gives the module at `path` (without the base_model.model prefix)."""
        return _by_pattern(self.rank_pattern, path, self.r)

    def scale_of(self, path: str) -> float:
        """alpha / r, or alpha / sqrt(r) with rsLoRA, of that module (bug-log A14, A16)."""
        rank, alpha = self.rank_of(path), _by_pattern(self.alpha_pattern, path, self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def read_config(path: Path) -> tuple[PeftConfig, list[str]]:
    """The config and its faults (A62, A64: empty unknown keys are noted, real ones are faults).

    Raises:
        BadAdapter: the file is not a JSON object at all.
    """
    data = _load(path)
    faults = [f"{key}: {why}" for key, why in REFUSED.items() if _is_real(data.get(key))]
    faults += _value_faults(data)
    notes = []
    for key in sorted(data.keys() - HARMLESS - USED - REFUSED.keys()):
        if _is_real(data[key]):
            faults.append(f"{key}: unknown to this version of Floe, and it has a value")
        else:
            notes.append(f"ignored {key}: it has no value")
    if faults:
        return PeftConfig(base=None, r=1, alpha=1.0, notes=tuple(notes)), faults
    base = data.get("base_model_name_or_path")
    config = PeftConfig(
        base=base if isinstance(base, str) and base else None,
        r=data["r"],
        alpha=float(data["lora_alpha"]),
        rslora=bool(data.get("use_rslora")),
        rank_pattern=data.get("rank_pattern") or {},
        alpha_pattern=data.get("alpha_pattern") or {},
        notes=tuple(notes),
    )
    return config, []


def _load(path: Path) -> dict[str, Any]:
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe may never end
        raise BadAdapter(f"{path} is no regular file. Copy the file itself")
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise BadAdapter(f"{path} is larger than {_MAX_CONFIG_BYTES} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"{path} is not JSON. Save the adapter again with PEFT") from error
    except OSError as error:
        raise BadAdapter(f"cannot read {path}: {error.strerror}") from error
    if not isinstance(data, dict):
        raise BadAdapter(f"{path} is not a JSON object. Save the adapter again with PEFT")
    return data


def _is_real(value: Any) -> bool:
    return not (value is None or value is False or value in ("", [], {}))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _value_faults(data: dict[str, Any]) -> list[str]:
    faults = []
    if data.get("peft_type") != "LORA":
        faults.append(f"peft_type is {data.get('peft_type')!r}: only LORA adapters are supported")
    if data.get("task_type") not in (None, "", "CAUSAL_LM"):
        faults.append(f"task_type is {data['task_type']!r}: only CAUSAL_LM adapters are supported")
    if data.get("bias", "none") not in ("none", None, ""):
        faults.append(f"bias is {data['bias']!r}: biases of the base were trained. Use bias='none'")
    if not _is_rank(data.get("r")):
        faults.append("r must be a whole number above 0")
    if not _is_number(data.get("lora_alpha")):
        faults.append("lora_alpha must be a finite number")
    if not isinstance(data.get("use_rslora", False), bool | None):
        faults.append("use_rslora must be true or false")
    start = data.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_MOVES_BASE):
        faults.append(
            f"init_lora_weights is {start!r}, which changes the base weights. Save it with "
            "path_initial_model_for_weight_conversion, which makes it a plain LoRA"
        )
    faults += _pattern_faults("rank_pattern", data.get("rank_pattern"), _is_rank)
    return faults + _pattern_faults("alpha_pattern", data.get("alpha_pattern"), _is_number)


def _pattern_faults(name: str, value: Any, is_good: Callable[[Any], bool]) -> list[str]:
    if not _is_real(value):
        return []
    if not isinstance(value, dict) or len(value) > _MAX_PATTERNS:
        return [f"{name} must be a table of at most {_MAX_PATTERNS} module patterns"]
    faults = []
    for pattern, number in value.items():
        if not is_good(number):
            faults.append(f"{name}: {pattern!r} must map to a number that can be used")
        elif not _is_cheap(pattern):
            faults.append(f"{name}: {pattern!r} is not a simple pattern; write out module names")
    return faults


def _is_cheap(pattern: str) -> bool:
    """Whether matching it takes bounded time: it comes from a file nobody here wrote."""
    wildcards = len(re.findall(r"[*+{?]", pattern))
    if len(pattern) > _MAX_PATTERN_CHARS or wildcards > _MAX_WILDCARDS:
        return False
    if re.search(r"\)[*+{]", pattern) or re.search(r"\\\d|\(\?", pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _by_pattern(patterns: Mapping[str, float], path: str, default: float) -> float:
    """PEFT's own rule: the first pattern, in file order, that matches the path or its end."""
    for pattern, value in patterns.items():
        if _compiled(pattern).match(path):
            return value
    return default


@functools.lru_cache(maxsize=2 * _MAX_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})$")
