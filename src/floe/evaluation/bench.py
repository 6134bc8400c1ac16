"""The benchmarks by name, and `decode`: speed and memory beside llama.cpp and llama-server."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floe.assemble import EMBEDDING, cpu_count, model_files
from floe.core.config import home
from floe.core.errors import NotFound
from floe.core.sections import ModelConfig
from floe.evaluation import decode, mixed
from floe.evaluation.cache_bench import cache_benchmark
from floe.evaluation.federated_bench import federated_benchmark
from floe.evaluation.fusion_bench import fusion_benchmark
from floe.evaluation.latency_bench import latency_benchmark
from floe.evaluation.machine import commit, load_average, machine, today, versions
from floe.evaluation.paging_bench import paging_benchmark
from floe.evaluation.power_bench import power_benchmark
from floe.evaluation.privacy_bench import privacy_benchmark
from floe.evaluation.processes import environment
from floe.evaluation.routing_bench import routing_benchmark
from floe.evaluation.servers import floe_server
from floe.evaluation.tailoring_bench import tailoring_benchmark
from floe.models.pull import ensure

Say = Callable[[str], None]
Figures = dict[str, Any]
SEED = 7
BUSY_LOAD = 1.0


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What `floe bench NAME` runs."""

    summary: str
    run: Callable[[bool, Say], Figures]


def run_benchmark(name: str, *, full: bool = False, say: Say = lambda _: None) -> Figures:
    """The figures of one benchmark as a flat object: numbers, strings and None.

    Raises:
        NotFound: no benchmark of that name. FloeError: a measured process failed.
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(BENCHMARKS)}"
        raise NotFound(f"no benchmark named {name!r}; {hint}")
    before = load_average()
    if before > BUSY_LOAD:
        say(
            f"the load average is {before:g}: other processes use the cores, so the absolute "
            "figures are not this machine's best and the ratios are uncertain"
        )
    figures = BENCHMARKS[name].run(full, say)
    return {
        "benchmark": name,
        "form": "full" if full else "quick",
        "made_at": today(),
        "commit": commit(),
        **figures,
        **machine(),
        "load_average_before": before,
        "load_average_after": load_average(),
    }


def decode_benchmark(full: bool, say: Say) -> Figures:
    """Issue 2's figures of speed and memory."""
    name, threads = ModelConfig().name, cpu_count()
    plan = decode.FULL if full else decode.QUICK
    pulled = model_files(name, home=home())
    ensure(EMBEDDING, home=home())
    with _scratch_home(threads) as (folder, config):
        pair = mixed.prepare_adapters(folder, config)
        measured = decode.measure_decode(
            model=pulled.files["model"], adapters=pair["files"], threads=threads, plan=plan,
            seed=SEED, say=say,
        )  # fmt: skip
        streams = mixed.measure_mixed(
            model=pulled.files["model"], home=folder, config=config, threads=threads,
            n_tokens=128 if full else 64, repeats=9 if full else 3, say=say, pair=pair,
        )  # fmt: skip
        starts = streams.ready_cpu_s + _starts_cpu_s(folder, config, 4 if full else 2)
    return {
        "model": pulled.name,
        "model_digest": pulled.digest or None,
        "threads": threads,
        "seed": SEED,
        **decode.decode_figures(measured, plan),
        **mixed.mixed_figures(streams),
        "help_cpu_s": decode.median(_help_cpu_s(11 if full else 5)),
        "ready_cpu_s": decode.median(starts),
        "ready_repeats": len(starts) or None,
        **versions(llama_build=measured.memory["floe"]["llama_build"]),
    }


@contextmanager
def _scratch_home(threads: int) -> Iterator[tuple[Path, Path]]:
    """A FLOE_HOME with the models of the real one and nothing else, and a configuration."""
    with tempfile.TemporaryDirectory(prefix="floe-bench-") as name:
        folder = Path(name)
        (folder / "models").symlink_to((home() / "models").resolve())
        config = folder / "floe.toml"
        config.write_text(f"[model]\nthreads = {threads}\n")
        yield folder, config


def _starts_cpu_s(folder: Path, config: Path, n: int) -> list[float]:
    out = []
    for _ in range(n):
        with floe_server(folder, config) as running:
            if running.ready_cpu_s is not None:
                out.append(running.ready_cpu_s)
    return out


def _help_cpu_s(n: int) -> list[float]:
    """CPU seconds of `floe --help`; the first run, which may compile, is not counted."""
    return [_children_cpu_s([sys.executable, "-m", "floe", "--help"]) for _ in range(n + 1)][1:]


def _children_cpu_s(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(bare=False))
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


BENCHMARKS = {
    "decode": Benchmark(
        summary="speed and memory of the engine and the server beside bare llama.cpp, llama-server",
        run=decode_benchmark,
    ),
    "privacy": Benchmark(
        summary="what the privacy gate finds and lets through, beside Presidio's analyzer",
        run=privacy_benchmark,
    ),
    "fusion": Benchmark(
        summary="tokens of two models over an emulated network: speed, exactness, takeovers",
        run=fusion_benchmark,
    ),
    "cache": Benchmark(
        summary="paging cost and stalls of the learned cache policy beside six simple ones",
        run=cache_benchmark,
    ),
    "routing": Benchmark(
        summary="how often the router is right, and what learning with costs saves",
        run=routing_benchmark,
    ),
    "paging": Benchmark(
        summary="first tokens of a live server with 64 adapters and room for 8, beside LRU",
        run=paging_benchmark,
    ),
    "latency": Benchmark(
        summary="where a token's and a prompt's time goes: attention, FFN, head, sampling, cache",
        run=latency_benchmark,
    ),
    "power": Benchmark(
        summary="modelled joules under latency goals on five boards, beside governors and rules",
        run=power_benchmark,
    ),
    "federated": Benchmark(
        summary="adapters learned together: exactness, speed, clusters, privacy, faults",
        run=federated_benchmark,
    ),
    "tailoring": Benchmark(
        summary="models cut to a device: perplexity at equal speed, memory, adapters carried over",
        run=tailoring_benchmark,
    ),
}
