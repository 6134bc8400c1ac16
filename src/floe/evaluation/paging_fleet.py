"""A fleet of adapters in the store of a FLOE_HOME, in a process of its own.

Run: `python -m floe.evaluation.paging_fleet HOME CONFIG N`; prints one JSON object. Each adapter is
one of the shipped ones with seeded noise on its weights, written as a PEFT folder and added as any
user's would be. Its place among the topics lies near its field's, a little towards its own topic:
adapters of one field are alike and not the same, as their weights are.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.assemble import open_embedding, open_engine, open_store
from floe.core.config import load_config
from floe.core.errors import Missing
from floe.evaluation.paging_topics import TOPICS, prompts_of
from floe.routing.centroid import Embedding, centroid_of

NOISE = 0.02
"""Standard deviation of the factor on each row of a matrix."""
OWN_SHARE = 0.3
"""How much of an adapter's place is its own topic's; the rest is its field's."""
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_CENTROID = "centroid.json"


def write_adapter(
    folder: Path, topic: int, *, seed: int, embedding: Embedding | None = None
) -> Path:
    """A PEFT folder for one topic: its field's shipped adapter, a little changed.

    With an `embedding` it has a centroid and can be routed to.

    Raises:
        Missing: no adapter of that field comes with this installation.
    """
    field, _ = TOPICS[topic]
    source = {f.name: f for f in shipped()}.get(field)
    if source is None:
        raise Missing(f"the shipped adapter {field!r} is not there: install Floe with its adapters")
    rng = np.random.default_rng([seed, topic])
    weights = {
        name: (w * (1 + NOISE * rng.standard_normal((w.shape[0], 1)))).astype(w.dtype)
        for name, w in load_file(source / _WEIGHTS).items()
    }
    folder.mkdir(parents=True)
    if embedding is not None:
        own = np.array(centroid_of(prompts_of(topic), embedding).vector)
        place = json.loads((source / _CENTROID).read_text())
        field_D = np.array(place["vector"])
        mixed_D = (1 - OWN_SHARE) * field_D / np.linalg.norm(field_D) + OWN_SHARE * own
        place["vector"] = (mixed_D / np.linalg.norm(mixed_D)).round(7).tolist()
        (folder / _CENTROID).write_text(json.dumps(place))
    save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    shutil.copy(source / _CONFIG, folder)
    return folder


def add_fleet(store: AdapterStore, embedding: Embedding, n: int, *, seed: int) -> dict[str, Any]:
    """Put `n` adapters into the store; their names by topic, and the largest one's bytes."""
    names, sizes = [], []
    with tempfile.TemporaryDirectory(prefix="floe-fleet-") as scratch:
        for topic in range(n):
            field, word = TOPICS[topic]
            name = f"{field}-{word.replace(' ', '-')}"
            folder = write_adapter(Path(scratch) / name, topic, seed=seed, embedding=embedding)
            size = store.add(folder, name=name).manifest.file_bytes
            shutil.rmtree(folder)
            names.append(name)
            sizes.append(size)
    return {"names": names, "most_bytes": max(sizes), "all_bytes": sum(sizes)}


def main() -> None:
    """Add and print."""
    home, config, n = Path(sys.argv[1]), load_config(Path(sys.argv[2])), int(sys.argv[3])
    engine = open_engine(config.model, home=home)
    try:
        store = open_store(config, engine, home=home)
        print(json.dumps(add_fleet(store, open_embedding(home=home), n, seed=7)))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
