"""Measure how long the engine takes to load adapters of rank 4 to 64, page cache warm.

`measure_loads.py OUT.json` with the models of FLOE_HOME; writes medians in ms with the machine.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from floe.adapters.formats import write_lora_gguf
from floe.adapters.lora import LoraPair, LoraTensors
from floe.assemble import open_engine
from floe.core.config import home
from floe.core.model import ModelInfo
from floe.core.sections import ModelConfig
from floe.evaluation.cache_trace import RANKS
from floe.evaluation.machine import machine, today

REPEATS = 15


def random_lora(info: ModelInfo, rank: int) -> LoraTensors:
    rng = np.random.default_rng(rank)
    pairs = {
        name: LoraPair(
            a_RI=rng.normal(0, n_in**-0.5, (rank, n_in)).astype(np.float32),
            b_OR=rng.normal(0, 0.002, (n_out, rank)).astype(np.float32),
        )
        for name, (n_out, n_in) in info.linears.items()
        if name.startswith("blk.")
    }
    return LoraTensors(architecture=info.architecture, pairs=pairs)


def main(out: Path) -> None:
    engine = open_engine(ModelConfig(threads=1), home=home())
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in RANKS:
            path = Path(folder) / f"r{rank}.gguf"
            write_lora_gguf(path, random_lora(engine.info, rank), engine.info.architecture)
            times_ms = []
            for _ in range(REPEATS + 1):
                start = time.perf_counter()
                handle = engine.load_adapter(path, key=str(rank))
                times_ms.append(1000 * (time.perf_counter() - start))
                engine.unload_adapter(handle)
            n_bytes = path.stat().st_size
            table.append([rank, n_bytes, round(statistics.median(times_ms[1:]), 3)])
            print(table[-1], flush=True)
    engine.close()
    found = {
        "command": "FLOE_HOME=... python scripts/measure_loads.py OUT.json",
        "what": "LlamaCppEngine.load_adapter, median of 15 after one warm run, one thread",
        "model": ModelConfig().name,
        "made_at": today(),
        **machine(),
        "rank_bytes_ms": table,
    }
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
