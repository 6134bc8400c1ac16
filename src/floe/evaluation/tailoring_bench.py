"""`floe bench tailoring`: search, speed, memory, perplexity and adapters of tailored models.

Parts are opened when they run: they pull torch in. The long form keeps each part's figures, and
within the search every trial, so that a stopped call goes on where it ended.
"""

from __future__ import annotations

import shutil

from floe.core.config import home
from floe.core.sections import ModelConfig
from floe.evaluation.machine import commit, versions
from floe.evaluation.parts import Figures, Part, Say, collect

PARTS = (
    Part(name="latency", module="tailoring_latency", function="latency_figures", extra="tailor"),
    Part(name="builds", module="tailoring_builds", function="build_figures", extra="tailor"),
    Part(name="carry", module="tailoring_carry", function="carry_figures", extra="tailor"),
    Part(name="search", module="tailoring_latency", function="search_part", extra="tailor"),
)


def tailoring_benchmark(full: bool, say: Say) -> Figures:
    """Issue 7's figures.

    Raises:
        Missing: a package that a part needs is not installed.
        FloeError: a part failed.
    """
    form = "full" if full else "quick"
    folder = home() / "bench" / f"tailoring-{form}-{commit() or 'unknown'}"
    if not full:  # what an earlier quick run left would be of other files
        shutil.rmtree(folder, ignore_errors=True)
    path = folder / "figures.json" if full else None
    figures = collect(PARTS, full=full, say=say, path=path)
    from floe.engine.llama_library import library

    return {
        "model": ModelConfig().name,
        "threads": 1,
        **figures,
        **versions(llama_build=library().layout.build),
    }
