"""The privacy gate with the detectors that are on disk."""

from __future__ import annotations

from pathlib import Path

from floe.assemble.models import embedding_of
from floe.assemble.names import EMBEDDING, NER
from floe.core.config import Config
from floe.models.pull import available
from floe.privacy.build import build_gate
from floe.privacy.gate import Gate


def open_gate(config: Config, *, home: Path) -> Gate:
    """The privacy gate, with the NER model and the semantic score's embedding when on disk."""
    pulled = {m.name: m for m in available(home)}
    on_disk = pulled.get(NER)
    roles = ("model", "tokenizer", "config")
    files = [on_disk.files[r] for r in roles] if on_disk else None
    paths = (files[0], files[1], files[2]) if files else None
    encoder = None
    if EMBEDDING in pulled and config.privacy.semantic != "off":
        encoder = embedding_of(pulled[EMBEDDING])
    return build_gate(config.privacy, paths, tenants=config.tenants, encoder=encoder)
