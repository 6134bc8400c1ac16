"""Two adapters in the store of a FLOE_HOME, in a process of its own so that no model stays loaded.

Run: `python -m floe.evaluation.adapter_pair HOME CONFIG`; prints `{"names": [..], "files": [..]}`.
The shipped adapters are taken; where there are none for this model, random ones of rank 8 are
made, whose arithmetic costs the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from floe.adapters.formats import write_lora_gguf
from floe.adapters.lora import LoraPair, LoraTensors
from floe.adapters.store import AdapterStore
from floe.assemble import open_engine, open_store
from floe.core.config import load_config
from floe.core.model import ModelInfo

RANK = 8


def random_lora(info: ModelInfo, *, seed: int) -> LoraTensors:
    """A small random change of every linear layer of every block."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, (n_out, n_in) in info.linears.items():
        if not name.startswith("blk."):
            continue
        a_RI = rng.normal(0, n_in**-0.5, (RANK, n_in)).astype(np.float32)
        b_OR = rng.normal(0, 0.01, (n_out, RANK)).astype(np.float32)
        pairs[name] = LoraPair(a_RI=a_RI, b_OR=b_OR)
    return LoraTensors(architecture=info.architecture, pairs=pairs)


def prepare(store: AdapterStore, info: ModelInfo, folder: Path) -> dict[str, list[str]]:
    """Names and GGUF files of two adapters of the store."""
    stored = store.list()
    for i in range(2 - len(stored)):
        path = folder / f"random-{i}.gguf"
        write_lora_gguf(path, random_lora(info, seed=i), info.architecture)
        store.add(path)
    two = store.list()[:2]
    return {
        "names": [s.manifest.name for s in two],
        "files": [str(s.gguf) for s in two],
    }


def main() -> None:
    """Prepare and print."""
    home, config = Path(sys.argv[1]), load_config(Path(sys.argv[2]))
    engine = open_engine(config.model, home=home)
    try:
        store = open_store(config, engine, home=home)
        print(json.dumps(prepare(store, engine.info, home)))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
