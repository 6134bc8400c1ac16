"""The model that is cut from: its files, its types, and its adapters, whose rows go back to
Hugging Face's order.

Legend: O outputs of a linear layer, R rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floe.adapters.lora import LoraTensors
from floe.adapters.names import hf_path
from floe.adapters.source import read_source
from floe.assemble.adapters import open_store
from floe.assemble.models import model_files
from floe.core.adapter import Centroid
from floe.core.config import Config
from floe.core.files import safe_name, sha256_file
from floe.core.gguf import read_header
from floe.core.layer_names import INTERLEAVED
from floe.core.sections import ModelConfig
from floe.engine.llamacpp import LlamaCppEngine
from floe.engine.torch_engine import folder_from_gguf
from floe.federated.update import AdapterState, Factors
from floe.models.sources import Progress
from floe.tailoring import gguf_quant
from floe.tailoring.carry import Modules
from floe.tailoring.plan import GROUPS, ModelShape
from floe.tailoring.shapes import shape_of_gguf


@dataclass(frozen=True, kw_only=True)
class Original:
    """The model that is cut from, as a GGUF and as a Hugging Face folder of the same weights.

    `names` are those that its adapters may declare, the publisher's full name first.
    """

    gguf: Path
    folder: Path
    name: str
    names: tuple[str, ...]
    shape: ModelShape


def open_original(
    name: str, *, home: Path, folder: Path | None = None, progress: Progress | None = None
) -> Original:
    """A model by name, reference or GGUF path; its folder is made once, unless it is given.

    Raises:
        NotFound, PullFailed, BadModel: no such model, or none that can be cut.
    """
    pulled = model_files(name, home=home, progress=progress)
    gguf = pulled.files["model"]
    digest = pulled.digest or sha256_file(gguf)
    known = sorted({*pulled.base_names, pulled.name}, key=lambda n: ("/" not in n, n))
    return Original(
        gguf=gguf,
        folder=folder or folder_from_gguf(gguf, home / "train" / digest[:16]),
        name=pulled.name,
        names=tuple(known),
        shape=shape_of_gguf(read_header(gguf), base_digest=digest),
    )


def types_of_file(path: Path) -> dict[str, str]:
    """The type of most tensors of each group, Q8_0 for one that plans do not know.

    A tied output has none of its own.
    """
    names = {type_id: name for name, type_id in gguf_quant.TYPE_IDS.items()}
    out = {}
    for group in GROUPS:
        tensors = read_header(path).tensors.items()
        found = [i.type for name, i in tensors if gguf_quant.group_of(name) == group]
        if found:
            out[group] = names.get(max(set(found), key=found.count), "Q8_0")
    return out


@dataclass(frozen=True, kw_only=True)
class BaseAdapter:
    """An adapter of the original: modules by Hugging Face path, scale folded into B."""

    name: str
    modules: Modules
    digest: str
    description: str
    centroid: Centroid | None
    facts: Mapping[str, float | int | str | None]


def adapters_of(
    config: Config, original: Original, names: Sequence[str], *, home: Path
) -> list[BaseAdapter]:
    """Adapters by their names in the original's store, or as folders and files.

    Raises:
        NotFound: no such adapter. BadAdapter: it does not fit the original.
    """
    model = dataclasses.replace(ModelConfig(), name=str(original.gguf))
    own = dataclasses.replace(config, model=model)
    engine = LlamaCppEngine(
        original.gguf, name=original.name, digest=original.shape.base_digest, threads=1,
        names=frozenset({original.name, *original.names}), context_tokens=256,
    )  # fmt: skip
    try:
        store = open_store(own, engine, home=home)
        out = []
        for name in names:
            path = Path(name).expanduser()
            if path.exists() and name not in {e.name for e in store.entries()}:
                read = read_source(path, engine.info)
                title = path.name if path.is_dir() else path.stem
                about = (title, read.lora, "", read.description, read.centroid, read.facts)
            else:
                stored = store.get(name)
                m = stored.manifest
                about = (name, store.tensors(stored), m.digest, m.description, m.centroid, m.facts)
            out.append(_base_adapter(original, *about))
        return out
    finally:
        engine.close()


def _base_adapter(
    original: Original,
    name: str,
    lora: LoraTensors,
    digest: str,
    description: str,
    centroid: Centroid | None,
    facts: Mapping[str, float | int | str | None],
) -> BaseAdapter:
    width = original.shape.head_width
    modules = {}
    for gguf_name, pair in lora.pairs.items():
        b_OR = pair.b_OR
        if lora.architecture in INTERLEAVED and gguf_name.endswith((".attn_q", ".attn_k")):
            b_OR = in_halves(b_OR, width)
        modules[hf_path(gguf_name)] = (pair.a_RI, b_OR)
    return BaseAdapter(
        name=safe_name(name, what="adapter"), modules=modules, digest=digest,
        description=description, centroid=centroid, facts=facts,
    )  # fmt: skip


def in_halves(b_OR: Any, head_width: int) -> Any:
    """Rows of each head from interleaved order (GGUF) to halves (Hugging Face)."""
    pairs = b_OR.reshape(-1, head_width // 2, 2, b_OR.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(b_OR.shape))


def state_of(modules: Modules, *, base_digest: str) -> AdapterState:
    """Modules as federated learning has them."""
    return AdapterState(
        base_digest=base_digest,
        modules={name: Factors(a_RI=a, b_OR=b) for name, (a, b) in modules.items()},
    )
