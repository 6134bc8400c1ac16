"""Does the served adapter do what its weights say? Compared with the merged model (bug-log A17).

T = tokens of a prompt, V = vocabulary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from floe.adapters.lora import FloatArray, LoraTensors
from floe.adapters.merge import write_f32
from floe.core.adapter import StoredAdapter
from floe.core.errors import FloeError
from floe.core.files import safe_name

Run = Callable[[Path, Path | None, Sequence[str]], Sequence[FloatArray]]
"""(model GGUF, adapter GGUF or None, prompts) -> log-probabilities per prompt, (T, V) or (V,)."""

TOLERANCE = 0.05
"""Largest difference allowed in F32; 0.016 was measured on SmolLM2-135M (engines.md)."""

PROMPTS = (
    "The capital of France is",
    "Question: A train covers 120 km in 2 hours. How fast is it?\nAnswer:",
    "def add(a, b):\n    ",
    "The patient was treated with antibiotics because",
)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found; differences are in natural-log probabilities, over all prompts.

    `mean_kl` is KL(merged || served). `effect` is how far the merged model is from the plain
    base: an adapter that is silently not applied has max_difference = effect, and is not ok
    however small both are (A37).
    """

    name: str
    is_ok: bool
    max_difference: float
    mean_kl: float
    effect: float
    modules: int
    positions: int
    tolerance: float
    reason: str


def verify(
    stored: StoredAdapter,
    lora: LoraTensors,
    model: Path,
    run: Run,
    *,
    model_digest: str,
    cache_folder: Path,
    prompts: Sequence[str] = PROMPTS,
    tolerance: float = TOLERANCE,
) -> Verification:
    """Compare base + served adapter with W + B A merged in numpy, both in F32.

    `lora` is `store.tensors(stored)`, or the source it was added from. The F32 base is kept in
    `cache_folder` under `model_digest`; the merged model is deleted.

    Raises:
        Missing: the `gguf` package is not installed.
        BadModel: the model cannot be brought to F32.
        FloeError: no room on the disk, or `run` gave nothing that can be compared.
    """
    base = cache_folder / f"{safe_name(model_digest, what='model digest')}-F32.gguf"
    if not base.is_file():
        write_f32(model, base)
    plain = run(base, None, prompts)
    served = run(base, stored.gguf, prompts)
    with tempfile.TemporaryDirectory(dir=cache_folder, prefix=".merged-") as folder:
        merged_model = Path(folder) / "merged.gguf"
        write_f32(base, merged_model, merged=lora)
        merged = run(merged_model, None, prompts)
    return compare(
        plain, served, merged, name=stored.manifest.name, modules=len(lora.pairs),
        tolerance=tolerance,
    )  # fmt: skip


def compare(
    plain: Sequence[FloatArray],
    served: Sequence[FloatArray],
    merged: Sequence[FloatArray],
    *,
    name: str,
    modules: int,
    tolerance: float = TOLERANCE,
) -> Verification:
    """The verdict over log-probabilities of the plain base, the served and the merged model."""
    plain_TV, served_TV, merged_TV = (_stacked(arrays) for arrays in (plain, served, merged))
    if not plain_TV.shape == served_TV.shape == merged_TV.shape:
        raise FloeError("verify: the runs gave different numbers of positions. Report this")
    difference = float(np.abs(served_TV - merged_TV).max())
    effect = float(np.abs(plain_TV - merged_TV).max())
    exact_TV = merged_TV.astype(np.float64)
    kl = float((np.exp(exact_TV) * (exact_TV - served_TV)).sum(axis=1).mean())
    if difference > tolerance:
        reason = f"the served adapter is {difference:.3g} away from the merged reference"
    elif difference >= effect:
        reason = "the served adapter cannot be told from one that is not applied"
    else:
        reason = ""
    return Verification(
        name=name,
        is_ok=not reason,
        max_difference=difference,
        mean_kl=max(0.0, kl),  # below 0 by rounding only
        effect=effect,
        modules=modules,
        positions=len(plain_TV),
        tolerance=tolerance,
        reason=reason,
    )


def _stacked(arrays: Sequence[FloatArray]) -> FloatArray:
    """(all positions, V); FloeError unless there are some and all are finite."""
    if not arrays:
        raise FloeError("verify: the run gave no log-probabilities. Report this")
    stacked = np.concatenate([np.atleast_2d(a) for a in arrays])
    if not np.isfinite(stacked).all():
        raise FloeError("verify: the run gave log-probabilities that are not finite. Report this")
    return stacked
