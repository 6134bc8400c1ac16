"""Federated learning's concrete choices: the base to train for.

Opened by `floe fed` alone: it pulls torch in.
"""

from __future__ import annotations

from pathlib import Path

from floe.assemble.models import model_files
from floe.engine.torch_engine import folder_from_gguf
from floe.federated.on_torch.base_model import BaseModel, load_base, load_gguf_base
from floe.models.sources import Progress


def open_base(
    name: str, *, home: Path, n_layers: int | None = None, progress: Progress | None = None
) -> BaseModel:
    """The base that adapters are trained for: a Hugging Face folder, or a model as served.

    `name` is a folder, or a model's name, reference or GGUF path; a GGUF is dequantized once into
    FLOE_HOME/train, and its own digest names the base, so that what is trained fits what is served.

    Raises:
        NotFound, PullFailed, BadModel: with what to do.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return load_base(folder, n_layers=n_layers)
    pulled = model_files(name, home=home, progress=progress)
    known = sorted(pulled.base_names, key=lambda n: ("/" not in n, n))
    return load_gguf_base(
        pulled.files["model"],
        cache=home / "train",
        convert=folder_from_gguf,
        digest=pulled.digest,
        name=known[0] if known else pulled.name,
        n_layers=n_layers,
    )
