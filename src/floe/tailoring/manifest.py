"""manifest.json: a tailored model with all that serving it takes, and the board it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from floe.core.errors import BadModel, BadPlan
from floe.core.files import safe_name, sha256_file
from floe.tailoring.base import Cost
from floe.tailoring.board import Board, refuse_other
from floe.tailoring.json_file import number, optional_number, read_json, text, whole, write_json
from floe.tailoring.memory import KV_TYPES
from floe.tailoring.plan import LayerPlan, Plan
from floe.tailoring.tune import Settings

KIND, VERSION = "tailored model", 1
FILE_NAME = "manifest.json"
_SEALED = (
    "name", "model_file", "model_sha256", "base_digest", "base_names", "plan", "cut_file",
    "settings", "cost", "machine", "engine", "adapters", "adapters_folder", "perplexity_before",
    "perplexity_after", "made_by",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A tailored model. Paths are relative to the manifest's folder.

    `name` is what the model is called, and its adapter store; adapters made for the base declare
    one of `base_names`, which the tailored model goes on answering to. `cost` was taken on
    `board` with `settings`. `adapters` were carried over and lie in `adapters_folder`.
    """

    name: str
    model_file: str
    model_sha256: str
    base_digest: str
    base_names: tuple[str, ...]
    plan: Plan
    board: Board
    settings: Settings
    cost: Cost
    cut_file: str | None = None
    adapters: tuple[str, ...] = ()
    adapters_folder: str | None = None
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    made_by: str = ""
    facts: Mapping[str, float | int | str | None] = field(default_factory=dict)


def write_manifest(path: Path, manifest: Manifest) -> str:
    """Write it whole or not at all; gives its digest.

    Raises:
        BadPlan: a figure that is no finite number, or a path that leads out of the folder.
    """
    for name in (manifest.model_file, manifest.cut_file, manifest.adapters_folder):
        _inside(path, name)
    data = {**asdict(manifest), "machine": dict(manifest.board.machine)}
    data["engine"] = manifest.board.engine
    del data["board"]
    data["plan"]["layers"] = [[p.n_kv_heads, p.q_per_kv, p.n_ffn] for p in manifest.plan.layers]
    return write_json(path, data, kind=KIND, version=VERSION, sealed=_SEALED)


def read_manifest(path: Path, *, here: Board | None, any_board: bool = False) -> Manifest:
    """The manifest of a file, of this board unless `any_board`; `here` None = not compared.

    Raises:
        BadPlan: unreadable, damaged, of a newer version, or of another machine or engine.
    """
    data = read_json(path, kind=KIND, version=VERSION, sealed=_SEALED)
    try:
        manifest = _manifest(path, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadPlan(
            f"{path} is damaged ({type(error).__name__}: {str(error)[:80]}); build the model again"
        ) from error
    if here is not None:
        refuse_other(f"the model {path}", manifest.board, here, any_board=any_board)
    return manifest


def model_path(path: Path, manifest: Manifest) -> Path:
    """The model's file, after its digest was compared.

    Raises:
        BadModel: it is not there, or is not the file the manifest was made for.
    """
    model = path.parent / manifest.model_file
    if not model.is_file():
        raise BadModel(f"{path} names {manifest.model_file}, which is not beside it")
    if sha256_file(model) != manifest.model_sha256:
        raise BadModel(
            f"{model} is not the file {path.name} was made for: its sha256 differs. Copy both "
            "again, or build the model again"
        )
    return model


def _manifest(path: Path, data: Mapping[str, Any]) -> Manifest:
    plan, settings, cost = data["plan"], data["settings"], data["cost"]
    cut = data["cut_file"]
    folder = data["adapters_folder"]
    for name in (data["model_file"], cut, folder):
        _inside(path, name)
    return Manifest(
        name=safe_name(text(data["name"]), what="model"),
        model_file=text(data["model_file"]),
        model_sha256=text(data["model_sha256"]),
        base_digest=text(data["base_digest"]),
        base_names=tuple(text(n) for n in data["base_names"]),
        plan=_plan(plan),
        board=Board(
            machine={text(k): text(v) for k, v in data["machine"].items()},
            engine=text(data["engine"]),
        ),
        settings=_settings(settings),
        cost=Cost(
            prefill_ms=number(cost["prefill_ms"], least=0.0),
            decode_ms=number(cost["decode_ms"], least=0.0),
            memory_bytes=whole(cost["memory_bytes"]),
            energy_mj=optional_number(cost["energy_mj"]),
            source=text(cost["source"]),
        ),
        cut_file=None if cut is None else text(cut),
        adapters=tuple(safe_name(text(n), what="adapter") for n in data["adapters"]),
        adapters_folder=None if folder is None else text(folder),
        perplexity_before=optional_number(data["perplexity_before"]),
        perplexity_after=optional_number(data["perplexity_after"]),
        made_by=text(data["made_by"]),
        facts=dict(data["facts"]),
    )


def _plan(data: Mapping[str, Any]) -> Plan:
    return Plan(
        base_digest=text(data["base_digest"]),
        layers=tuple(
            LayerPlan(n_kv_heads=whole(kv), q_per_kv=whole(q), n_ffn=whole(ffn))
            for kv, q, ffn in data["layers"]
        ),
        quants={text(k): text(v) for k, v in data["quants"].items()},
        importance=text(data["importance"]),
        made_by=text(data["made_by"]),
    )


def _settings(data: Mapping[str, Any]) -> Settings:
    if data["kv_type"] not in KV_TYPES or not isinstance(data["flash_attention"], bool):
        raise ValueError("settings that no engine has")
    return Settings(
        threads=whole(data["threads"]),
        batch_tokens=whole(data["batch_tokens"], least=32),
        kv_type=data["kv_type"],
        flash_attention=data["flash_attention"],
        context_tokens=whole(data["context_tokens"], least=64),
    )


def _inside(path: Path, name: Any) -> None:
    """Raise BadPlan for a name that is no file below the manifest's folder."""
    if name is None:
        return
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise BadPlan(f"{path}: {str(name)[:80]!r} must be a file below the manifest's folder")
