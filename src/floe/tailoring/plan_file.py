"""Plans and cuts as JSON files; an unknown key is an error, so that no wish is dropped silently."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from floe.core.errors import BadPlan
from floe.core.files import atomic_write
from floe.tailoring.base import Budgets
from floe.tailoring.plan import Cut, LayerCut, LayerPlan, Plan
from floe.tailoring.rules import Rules

FORMAT = 1
_T = TypeVar("_T")
_PLAN_KEYS = (
    "format", "base_digest", "layers", "quants", "importance", "made_by", "budgets", "rules"
)  # fmt: skip
_CUT_KEYS = ("format", "base_digest", "head_width", "layers")


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan with the budgets and rules it was made for."""

    plan: Plan
    budgets: Budgets = field(default_factory=Budgets)
    rules: Rules = field(default_factory=Rules)


def write_plan(path: Path, file: PlanFile) -> None:
    """Write a plan as JSON, whole or not at all."""
    record = {"format": FORMAT, **asdict(file.plan)}
    _write(path, {**record, "budgets": asdict(file.budgets), "rules": asdict(file.rules)})


def read_plan(path: Path) -> PlanFile:
    """The plan of a file.

    Raises:
        BadPlan: unreadable, another format, an unknown key or a value of a wrong kind.
    """
    data = _read(path, "plan", _PLAN_KEYS)
    layers = tuple(
        _record(path, LayerPlan, part, f"layers[{i}]") for i, part in enumerate(_list(path, data))
    )
    quants = data.get("quants", {})
    texts = {key: data.get(key, "") for key in ("base_digest", "importance", "made_by")}
    if not isinstance(quants, dict) or not all(isinstance(v, str) for v in quants.values()):
        raise BadPlan(f"{path}: quants must map tensor groups to types")
    if not all(isinstance(v, str) for v in texts.values()) or not texts["base_digest"]:
        raise BadPlan(f"{path}: base_digest, importance and made_by must be texts, the first given")
    texts["importance"] = texts["importance"] or "taylor"
    return PlanFile(
        plan=Plan(layers=layers, quants=quants, **texts),
        budgets=_record(path, Budgets, data.get("budgets", {}), "budgets"),
        rules=_rules(path, data.get("rules", {})),
    )


def write_cut(path: Path, cut: Cut) -> None:
    """Write the index map that adapters are carried over with (bug-log D11)."""
    _write(path, {"format": FORMAT, **asdict(cut)})


def read_cut(path: Path) -> Cut:
    """The index map of a file.

    Raises:
        BadPlan: unreadable, another format, an unknown key or indices that cannot be.
    """
    data = _read(path, "index map", _CUT_KEYS)
    layers = []
    for i, part in enumerate(_list(path, data)):
        where = f"layers[{i}]"
        if isinstance(part, dict):
            part = {k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}
        found = _record(path, LayerCut, part, where)
        for name in ("kv_heads", "q_heads", "ffn"):
            _check_indices(path, f"{where}.{name}", getattr(found, name))
        layers.append(found)
    width = data.get("head_width")
    if not isinstance(width, int) or width < 1 or not isinstance(data.get("base_digest"), str):
        raise BadPlan(f"{path}: head_width must be a number above 0, base_digest a text")
    return Cut(base_digest=data["base_digest"], layers=tuple(layers), head_width=width)


def _check_indices(path: Path, where: str, indices: Any) -> None:
    is_ascending = isinstance(indices, tuple) and all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in indices
    )
    if not is_ascending or any(a >= b for a, b in pairwise(indices)):
        raise BadPlan(f"{path}: {where} must be ascending whole numbers, 0 or more")


def _rules(path: Path, data: Any) -> Rules:
    if isinstance(data, dict):
        data = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return _record(path, Rules, data, "rules")


def _record(path: Path, kind: Callable[..., _T], data: Any, where: str) -> _T:
    """A dataclass from a JSON object; unknown keys and wrong kinds of values are errors."""
    if not isinstance(data, dict):
        raise BadPlan(f"{path}: {where} must be an object")
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    _check_keys(path, data, tuple(known), f"{where}.")
    for key, value in data.items():
        if not _fits(value, known[key]):
            raise BadPlan(f"{path}: {where}.{key} cannot be {value!r}; it is {known[key]}")
    try:
        return kind(**data)
    except TypeError as error:
        raise BadPlan(f"{path}: {where} lacks a value: {error}") from error


def _fits(value: Any, declared: str) -> bool:
    if value is None:
        return declared.endswith("| None")
    if isinstance(value, bool):
        return False
    if declared.startswith("int"):
        return isinstance(value, int)
    if declared.startswith("float"):
        return isinstance(value, int | float)
    if declared.startswith("Mapping"):
        return isinstance(value, dict) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in value.values()
        )
    kind = int if "int" in declared else str
    return isinstance(value, tuple) and all(isinstance(v, kind) for v in value)


def _check_keys(path: Path, data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; keys are {', '.join(known)}"
            raise BadPlan(f"{path}: unknown key {where}{key}{hint}")


def _list(path: Path, data: Mapping[str, Any]) -> list[Any]:
    layers = data.get("layers")
    if not isinstance(layers, list) or not layers:
        raise BadPlan(f"{path}: layers must be a list with at least one entry")
    return layers


def _read(path: Path, what: str, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadPlan(f"cannot read the {what} {path}: {type(error).__name__}") from error
    except ValueError as error:
        raise BadPlan(f"{path} is no JSON; write the {what} again") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadPlan(f"{path} is no {what} of format {FORMAT}; make it again with this version")
    _check_keys(path, data, keys, "")
    return data


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
