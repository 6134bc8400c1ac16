"""Real arrivals, shipped in small: ServeGen clients, Mooncake sessions, Azure LLM inference.

`read_*` read the files as published; `scripts/pack_traces.py` packs what the benchmarks need into
`traces/` (licences and attribution: traces/SOURCE.md), and `packed` reads that.
"""

from __future__ import annotations

import csv
import json
import lzma
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floe.evaluation.cache_generate import Arrivals
from floe.evaluation.cache_trace import LoadTimes

WINDOW_S = 600
FOLDER = Path(__file__).parent / "traces"


def read_servegen(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Requests per second, and the coefficient of variation, of each client and window.

    Both (clients, windows); windows of ten minutes.
    """
    files = sorted(folder.glob("chunk-*-trace*.csv"), key=lambda p: int(p.name.split("-")[1]))
    rates, variations = [], []
    for path in files:
        with path.open(newline="") as file:
            rows = [(float(r[1]), float(r[2] or 0)) for r in csv.reader(file)]
        rates.append([r for r, _ in rows])
        variations.append([v for _, v in rows])
    return np.array(rates), np.array(variations)


def read_mooncake(path: Path) -> Arrivals:
    """Seconds and session of each request; the block after the shared system prompt names it."""
    at_s: list[float] = []
    keys: list[int] = []
    index: dict[int, int] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        blocks = row["hash_ids"]
        block = blocks[1] if len(blocks) > 1 else blocks[0]
        at_s.append(row["timestamp"] / 1000)
        keys.append(index.setdefault(block, len(index)))
    return np.array(at_s), np.array(keys)


def read_azure_llm(path: Path) -> NDArray[np.float64]:
    """Arrival times in seconds since the first."""
    with path.open(newline="") as file:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(file)]
    times = [datetime.fromisoformat(s).timestamp() for s in stamps]
    return np.array(times) - times[0]


def read_azure_functions(path: Path) -> Arrivals:
    """End times in seconds, and the function of each invocation."""
    index: dict[str, int] = {}
    with path.open(newline="") as file:
        rows = [(float(r["end_timestamp"]), r["func"]) for r in csv.DictReader(file)]
    keys = [index.setdefault(func, len(index)) for _, func in rows]
    return np.array([t for t, _ in rows]), np.array(keys)


def servegen(
    rates_CW: NDArray[np.float64], variations_CW: NDArray[np.float64], *, n: int, seed: int
) -> Arrivals:
    """About `n` arrivals: the clients' rates scaled down, gaps Gamma with the measured variation.

    The scale is one for all, so shares and shifts stay; the burstiness is that of the windows.
    """
    rng = np.random.default_rng(seed)
    scale = n / (rates_CW.sum() * WINDOW_S)
    times, keys = [], []
    for client, rate_W in enumerate(rates_CW):
        expected_W = rate_W * WINDOW_S * scale
        if expected_W.sum() <= 0:
            continue
        mass_W = np.concatenate([[0.0], np.cumsum(expected_W)])
        busy_W = variations_CW[client][rate_W > 0]
        shape = 1.0 / float(np.clip(np.median(busy_W), 0.5, 4.0)) ** 2
        draws = int(mass_W[-1] * 1.5 + 40 / shape)
        at = np.cumsum(rng.gamma(shape, 1 / shape, size=draws)) - rng.random()
        at = at[(at > 0) & (at < mass_W[-1])]
        window = np.searchsorted(mass_W, at, side="right") - 1
        inside = (at - mass_W[window]) / np.maximum(expected_W[window], 1e-12)
        times.append((window + inside) * WINDOW_S)
        keys.append(np.full(len(at), client))
    at_s, key = np.concatenate(times), np.concatenate(keys)
    order = np.argsort(at_s, kind="stable")
    return at_s[order], key[order]


def azure(at_s_T: NDArray[np.float64], shares_K: NDArray[np.float64], *, seed: int) -> Arrivals:
    """Azure's arrivals with adapters by a rule: with 1/2 that of one of the last 8 requests, else
    one drawn by `shares_K`.
    """
    rng = np.random.default_rng(seed)
    fresh_T = rng.choice(len(shares_K), size=len(at_s_T), p=shares_K / shares_K.sum())
    again_T, back_T = rng.random(len(at_s_T)) < 0.5, rng.integers(1, 9, len(at_s_T))
    key_T = fresh_T.copy()
    for t in range(8, len(key_T)):
        if again_T[t]:
            key_T[t] = key_T[t - back_T[t]]
    return at_s_T, key_T


def packed(name: str) -> dict[str, NDArray[np.float64]]:
    """The arrays of one shipped trace: its columns by the names in the first line."""
    text = lzma.decompress((FOLDER / f"{name}.csv.xz").read_bytes()).decode()
    first, _, rest = text.partition("\n")
    table = np.array([[float(x) for x in line.split(",")] for line in rest.split()])
    return dict(zip(first.split(","), table.T, strict=True))


def pack(name: str, columns: dict[str, NDArray[np.float64]], folder: Path) -> Path:
    """Write columns as `packed` reads them; six significant digits."""
    lines = [",".join(columns)]
    lines += [",".join(f"{x:.7g}" for x in row) for row in zip(*columns.values(), strict=True)]
    path = folder / f"{name}.csv.xz"
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    return path


def packed_servegen() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As `read_servegen`, from the shipped file."""
    table = packed("servegen")
    shape = (43, int(table["window"].max()) + 1)
    rates, variations = np.zeros(shape), np.zeros(shape)
    at = (table["client"].astype(int), table["window"].astype(int))
    rates[at], variations[at] = table["rate"], table["variation"]
    return rates, variations


def load_times() -> LoadTimes:
    """The shipped table of measured load times (`scripts/measure_loads.py`)."""
    table = json.loads((FOLDER / "load_times.json").read_text())["rank_bytes_ms"]
    return LoadTimes(
        bytes_M=tuple(n_bytes for _, n_bytes, _ in table),
        load_ms_M=tuple(load_ms for *_, load_ms in table),
    )
