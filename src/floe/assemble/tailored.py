"""Serving a tailored model: this board, a manifest's file and settings. Needs no torch."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from floe.assemble.names import cpu_count
from floe.core.config import Config
from floe.core.errors import NotFound
from floe.core.sections import ModelConfig
from floe.engine.llama_library import library
from floe.engine.load_child import COMMAND
from floe.models.cache import PulledModel
from floe.tailoring.board import Board
from floe.tailoring.child_load import Loaded, try_load
from floe.tailoring.manifest import Manifest, model_path, read_manifest

_SETTINGS = ("threads", "context_tokens", "kv_type", "flash_attention", "batch_tokens")


def this_board() -> Board:
    """The machine and the engine's build, as profiles and manifests name them.

    Raises:
        Missing: no llama.cpp library.
    """
    machine = {
        "cpu": _cpu_name(),
        "cores": str(cpu_count()),
        "architecture": platform.machine(),
    }
    if board := _text(Path("/proc/device-tree/model")):
        machine["board"] = board
    return Board(machine=machine, engine=library().layout.build)


def try_model(path: Path) -> Loaded:
    """Load an untried file in a process of its own, as it is served, and decode two tokens.

    Raises:
        BadModel: it cannot be used, with what was found.
    """
    return try_load(path, command=COMMAND)


def manifest_at(name: str) -> Path | None:
    """The manifest that a model's name is the path of, if it is one: the file or its folder."""
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return path
    inside = path / "manifest.json"
    return inside if path.is_dir() and inside.is_file() else None


def tailored_files(path: Path) -> PulledModel:
    """The model of a manifest, its digest compared; for any board.

    Raises:
        BadPlan: the manifest cannot be used. BadModel: the file is not the manifest's.
    """
    manifest = read_manifest(path, here=None)
    return PulledModel(
        name=manifest.name,
        files={"model": model_path(path, manifest)},
        digest=manifest.model_sha256,
        base_names=frozenset(manifest.base_names),
    )


def tailored_settings(config: ModelConfig) -> ModelConfig:
    """The settings that a manifest was tuned to, where the configuration has its defaults.

    A name that is no manifest's changes nothing. Of another board's threads at most this one's
    cores are taken.

    Raises:
        BadPlan: the manifest is for another board, and `any_board` is not set.
    """
    path = manifest_at(config.name)
    if path is None:
        return config
    manifest = read_manifest(path, here=this_board(), any_board=config.any_board)
    default = ModelConfig()
    tuned = {
        name: getattr(manifest.settings, name)
        for name in _SETTINGS
        if getattr(config, name) == getattr(default, name)
    }
    if "threads" in tuned:
        tuned["threads"] = min(tuned["threads"], cpu_count())
    return dataclasses.replace(config, **tuned)


def with_manifest(config: Config, path: Path, *, any_board: bool) -> Config:
    """The configuration with the manifest's model and settings.

    Raises:
        NotFound: no manifest there. BadPlan: it cannot be used on this board.
    """
    model = dataclasses.replace(
        config.model, name=str(path), any_board=any_board or config.model.any_board
    )
    if manifest_at(str(path)) is None:
        raise NotFound(f"no manifest at {path}; floe tailor build writes one beside its model")
    return dataclasses.replace(config, model=tailored_settings(model))


def carried_adapters(name: str) -> tuple[Path, ...] | None:
    """The adapters that lie beside a manifest; None for a model that is not tailored."""
    path = manifest_at(name)
    if path is None:
        return None
    manifest: Manifest = read_manifest(path, here=None)
    folder = path.parent / (manifest.adapters_folder or ".")
    return tuple(folder / adapter for adapter in manifest.adapters)


def _cpu_name() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return platform.processor() or "unknown"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""
