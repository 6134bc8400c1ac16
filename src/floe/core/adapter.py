"""An adapter as the store knows it, without its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Centroid:
    """Where an adapter's training prompts lie; valid only under one embedding (bug-log B35)."""

    encoder_digest: str
    vector: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AdapterManifest:
    """Identity is `digest`, the sha256 of weights and config; `name` is only a handle.

    `rank` is the largest rank over modules, `modules` counts A/B pairs, `file_bytes` the GGUF's
    size (what it costs resident).
    """

    name: str
    digest: str
    base_model: str
    architecture: str
    rank: int
    modules: int
    file_bytes: int
    created_at: str
    description: str = ""
    centroid: Centroid | None = None
    facts: dict[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StoredAdapter:
    """A manifest and the folder that holds its files."""

    manifest: AdapterManifest
    folder: Path

    @property
    def gguf(self) -> Path:
        """The file the engine loads."""
        return self.folder / "adapter.gguf"
