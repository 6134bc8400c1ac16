"""Take what the board models are fitted to out of the published measurements.

    python scripts/extract_boards.py ../shared/data src/floe/power/boards/data

Writes one JSON per source. Values are unaltered; samples are grouped as each function says.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

_TEGRA = re.compile(
    r"CPU \[(?P<cpu>[^\]]*)\] EMC_FREQ \d+%@(?P<emc>\d+) GR3D_FREQ (?P<load>\d+)%@\[(?P<gpu>\d+)\]"
    r".*tj@(?P<tj>[\d.]+)C.*VDD_IN (?P<total>\d+)mW"
)
_BUSY_PERCENT = 60
_IDLE_PERCENT = 5
_SLM = {
    "campaign_g2/partA/emc204_slm": 1008,
    "campaign_g2/partA/emc665_slm": 1005,
    "campaign_g2/partA/emc2133_slm": 1007,
    "campaign_g2/partA/emc3199_slm": 1014,
    "replication_25w/g25_slm": 901,
    "replication_15w/r15_slm": 611,
}
_POWER_OF = {
    "replication_25w/g25_slm": "replication_25w/gov_slm",
    "replication_15w/r15_slm": "replication_15w/slm",
}
_EMC_OF = {"replication_25w/g25_slm": 3199, "replication_15w/r15_slm": 2133}
_GRID_NAMES = ("proxy", "cproxyv2", "vit", "mobilenet")


def orin_nano(folder: Path) -> dict[str, Any]:
    """SLM step times at six settings, one-second power samples, and four workloads on a grid."""
    slm, power = [], []
    for name, gpu_mhz in _SLM.items():
        told = json.loads((folder / f"{name}.json").read_text())
        emc = _EMC_OF.get(name) or int(re.search(r"emc(\d+)", name).group(1))  # type: ignore[union-attr]
        tokens = list(csv.DictReader((folder / f"{name}.csv").open()))
        times = [int(row["dur_ns"]) / 1e6 for row in tokens]
        slm.append(
            {
                "run": name, "gpu_mhz": gpu_mhz, "emc_mhz": emc,
                "prompt_tokens": told["meta"]["prompt_tokens"],
                "prefill_ms": told["meta"]["prefill_ms"],
                "decode_ms": [
                    round(statistics.median(times[i : i + 50]), 3)
                    for i in range(0, len(times) - 49, 50)
                ],
            }
        )  # fmt: skip
        power += _samples(folder / f"{_POWER_OF.get(name, name)}.tegra", name)
    for idle in ("e1_governor/idle", "replication_15w/idle", "replication_25w/gov_idle"):
        power += _samples(folder / f"{idle}.tegra", idle)[::4]
    grid = []
    for path in sorted((folder / "estimator_break").glob("emc*.json")):
        emc_mhz, gpu, work = re.match(r"emc(\d+)_gpu(\d+)_(\w+)", path.stem).groups()  # type: ignore[union-attr]
        if work in _GRID_NAMES:
            ms = json.loads(path.read_text())["compute_us"]["p50"] / 1000
            grid.append([work, int(gpu), int(emc_mhz), round(ms, 4)])
    return {
        "source": "dankang21/jetson-latency-lab, results/, commit "
        "0970a90e53e0e70977fa7115f6a095bad4a81bdf, Apache-2.0, Copyright 2026 Daniel Kang",
        "slm": slm,
        "power_columns": ["run", "gpu_mhz", "emc_mhz", "gpu_load", "cpu_load", "tj_c", "watts"],
        "power": power,
        "grid_columns": ["workload", "gpu_mhz", "emc_mhz", "ms"],
        "grid": grid,
    }


def _samples(path: Path, run: str) -> list[list[Any]]:
    """Lines where the GPU is busy or idle all through; loads in percent, watts of the board."""
    out = []
    for line in path.read_text().splitlines():
        found = _TEGRA.search(line)
        if found is None:
            continue
        load = int(found["load"])
        cores = [int(core.split("%")[0]) for core in found["cpu"].split(",") if "%" in core]
        if load > _BUSY_PERCENT or load < _IDLE_PERCENT:
            watts, tj = int(found["total"]) / 1000, float(found["tj"])
            gpu, emc = int(found["gpu"]), int(found["emc"])
            out.append([run, gpu, emc, load, sum(cores), tj, watts])
    return out


def odroid(folder: Path) -> dict[str, Any]:
    """Each run of each program at each frequency: its time, mean power, voltage, temperature."""
    rows = []
    files = ("xu3_PARSEC_big.tsv", 4), ("xu3_cBench_big_first11columns.tsv", 3)
    for name, at in files:
        runs: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
        lines = (folder / name).read_text().splitlines()
        for line in lines[1:]:
            cells = line.split("\t")
            runs[tuple(cells[1 : at + 1])].append(cells)
        for key, samples in sorted(runs.items()):
            seconds = (int(samples[-1][0]) - int(samples[0][0])) / 1e9
            cores = int(key[2]) if at == 4 else 1
            means = [statistics.fmean(float(s[at + n]) for s in samples) for n in (1, 2, 4)]
            rows.append(
                [key[0], int(key[1]), cores, int(key[-1]), len(samples), round(seconds, 3),
                 *(round(m, 4) for m in means)]
            )  # fmt: skip
    return {
        "source": "kranik/ARMPM_BUILDMODEL, Examples/Concatenated_Data, commit "
        "d3822e73263eec086e8f1509057a4494240e9717, BSD-3-Clause, Kris Nikov, University of Bristol",
        "columns": ["program", "run", "cores", "mhz", "samples", "seconds", "temperature_c",
                    "volts", "watts"],
        "rows": rows,
    }  # fmt: skip


def zeus(folder: Path) -> dict[str, Any]:
    """Seconds an epoch and mean watts against the power limit, every row."""
    rows = []
    for gpu in ("a40", "v100"):
        with (folder / f"summary_power_{gpu}.csv").open() as file:
            rows += [
                [gpu, r["network"], int(r["batch_size"]), r["optimizer"], float(r["power_limit"]),
                 round(float(r["time_per_epoch"]), 3), round(float(r["average_power"]), 2)]
                for r in csv.DictReader(file)
            ]  # fmt: skip
    return {
        "source": "ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/trace, commit "
        "75a8b9398034eb9baf74ca0a830c2c31bcce52cd, Apache-2.0, You et al., NSDI 2023",
        "columns": ["gpu", "network", "batch", "optimizer", "limit_w", "seconds", "watts"],
        "rows": rows,
    }


def main() -> None:
    """Read the shared data, write the package's files."""
    shared, out = map(Path, sys.argv[1:3])
    made = {
        "orin_nano": orin_nano(shared / "device_jetson_orin_nano_slm"),
        "odroid_xu3": odroid(shared / "device_odroid_xu3"),
        "zeus_gpu": zeus(shared / "device_zeus_gpu_power"),
    }
    for name, value in made.items():
        (out / f"{name}.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
