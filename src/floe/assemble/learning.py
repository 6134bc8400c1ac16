"""Federated learning's concrete choices: the base to train for.

Opened by `floe fed` alone: it pulls torch in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floe.assemble.models import model_files
from floe.core.files import sha256_file
from floe.engine.torch_engine import folder_from_gguf
from floe.federated.on_torch.base_model import BaseModel, load_base
from floe.models.sources import Progress


@dataclass(frozen=True, kw_only=True)
class BasePlace:
    """A base on disk as a Hugging Face folder; `digest` None = that of its weights."""

    folder: Path
    name: str
    digest: str | None


def find_base(name: str, *, home: Path, progress: Progress | None = None) -> BasePlace:
    """The base that adapters are trained for: a Hugging Face folder, or a model as served.

    `name` is a folder, or a model's name, reference or GGUF path; a GGUF is dequantized once into
    FLOE_HOME/train, and its own digest names the base, so that what is trained fits what is served.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return BasePlace(folder=folder, name=folder.resolve().name, digest=None)
    pulled = model_files(name, home=home, progress=progress)
    gguf = pulled.files["model"]
    digest = pulled.digest or sha256_file(gguf)
    # The publisher's full name first: PEFT's own loaders look for it.
    known = sorted(pulled.base_names, key=lambda n: ("/" not in n, n))
    return BasePlace(
        folder=folder_from_gguf(gguf, home / "train" / digest[:16]),
        name=known[0] if known else pulled.name,
        digest=digest,
    )


def open_base(
    name: str, *, home: Path, n_layers: int | None = None, progress: Progress | None = None
) -> BaseModel:
    """`find_base`, loaded; `n_layers` keeps the first blocks only.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    place = find_base(name, home=home, progress=progress)
    return load_base(place.folder, digest=place.digest, name=place.name, n_layers=n_layers)
