"""Memory and step time of training at one rank, measured in a process of its own.

A process's peak never falls, so each rank gets a new one. `python -m` this module is that process:
it reads what to do from its first argument and prints one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from floe.core.errors import FloeError
from floe.federated.on_torch.base_model import load_base
from floe.federated.on_torch.train import LoraTrainer
from floe.federated.plan import Measurement
from floe.federated.rows import Row
from floe.federated.settings import StepReport, TrainSettings

_STATUS = Path("/proc/self/status")
_DIGEST = "measured"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a step is measured on: `batch` rows of `tokens` random ids, the last `answer_tokens`
    learned, on the base in `folder`. The first of `steps` + 1 steps is not counted."""

    folder: Path
    targets: tuple[str, ...]
    batch: int = 4
    tokens: int = 128
    answer_tokens: int = 32
    steps: int = 3
    threads: int = 1
    n_layers: int | None = None


def measure_rank(work: Workload, rank: int, *, timeout_s: float = 600.0) -> Measurement:
    """Peak memory and median step time at `rank`, from a child process.

    Raises:
        FloeError: the child failed, was killed (as for memory) or took longer than `timeout_s`.
    """
    asked = json.dumps({**work.__dict__, "folder": str(work.folder), "rank": rank})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "floe.federated.on_torch.measure", asked],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "OMP_NUM_THREADS": str(work.threads)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FloeError(f"measuring rank {rank} took longer than {timeout_s:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FloeError(f"measuring rank {rank} failed with exit {done.returncode}: {last}")
    return Measurement(**json.loads(lines[-1]))


def measure_here(work: Workload, rank: int) -> Measurement:
    """The same in this process; its peak counts all that ran in it before."""
    base = load_base(work.folder, digest=_DIGEST, n_layers=work.n_layers)
    rng = random.Random(0)
    n_ids = base.model.config.vocab_size
    rows = [
        Row(ids=tuple(rng.randrange(n_ids) for _ in range(work.tokens)), n_answer=n)
        for n in [work.answer_tokens] * work.batch
    ]
    ends: list[float] = []

    def note(_: StepReport) -> None:
        ends.append(time.perf_counter())

    trainer = LoraTrainer(
        base=base,
        train=rows,
        validation=(),
        settings=TrainSettings(
            targets=work.targets,
            steps=work.steps + 1,
            batch=work.batch,
            max_tokens=work.tokens,
            threads=work.threads,
        ),
        progress=note,
    )
    trainer.fit(None, rank=rank, seed=0)
    times = [b - a for a, b in itertools.pairwise(ends)]
    return Measurement(rank=rank, memory_bytes=_peak_bytes(), step_s=statistics.median(times))


def _peak_bytes() -> int:
    """The most memory this process ever held.

    Linux counts what the parent held before it started us into ru_maxrss, so its own line is read.
    """
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _main(argument: str) -> None:
    asked = json.loads(argument)
    rank = asked.pop("rank")
    asked |= {"folder": Path(asked["folder"]), "targets": tuple(asked["targets"])}
    print(json.dumps(measure_here(Workload(**asked), rank).__dict__))


if __name__ == "__main__":
    _main(sys.argv[1])
