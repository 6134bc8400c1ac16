"""A base's layers from the headers of its safetensors: no weights are read, no torch is needed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floe.core.errors import BadModel
from floe.core.files import folder_digest

_MAX_HEADER_BYTES = 64 << 20


def layer_shapes(folder: Path, targets: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """(O, I) of each linear layer whose last name is in `targets`, by module path.

    Raises:
        BadModel: no safetensors, a broken header, or a target that is in no block.
    """
    shapes = {}
    for name, about in _tensors(folder):
        module, _, kind = name.rpartition(".")
        if kind == "weight" and module.rpartition(".")[2] in targets and len(about["shape"]) == 2:
            shapes[module] = (int(about["shape"][0]), int(about["shape"][1]))
    missing = set(targets) - {name.rpartition(".")[2] for name in shapes}
    if missing:
        raise BadModel(f"the base has no linear layer named {', '.join(sorted(missing))}")
    return shapes


def weights_digest(folder: Path) -> str:
    """Hex digest over the weights' files, the same that training and the reference engine give.

    Raises:
        BadModel: no safetensors in it.
    """
    _files(folder)
    return folder_digest(folder)


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise BadModel(f"{folder} holds no safetensors; pickles are never loaded")
    return paths


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in _files(folder):
        with path.open("rb") as file:
            try:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > _MAX_HEADER_BYTES:
                    raise ValueError("header too long")
                header = json.loads(file.read(length))
                header.pop("__metadata__", None)
                yield from ((str(name), about) for name, about in header.items())
            except (ValueError, struct.error, AttributeError) as error:
                raise BadModel(f"{path} is no safetensors file") from error
