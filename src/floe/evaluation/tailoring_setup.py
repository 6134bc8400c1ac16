"""What the parts of `floe bench tailoring` share: the model, its text, the stopwatch, a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from floe.assemble.building import without_zero_biases
from floe.assemble.originals import Original, open_original, types_of_file
from floe.assemble.tailoring import EngineTimer
from floe.core.config import home
from floe.core.files import sha256_file
from floe.core.gguf import read_header
from floe.core.sections import ModelConfig
from floe.evaluation.machine import commit
from floe.evaluation.tailoring_search import QUICK_LAYERS, SAMPLE
from floe.tailoring.cut import whole_cut
from floe.tailoring.gguf_export import export_gguf
from floe.tailoring.gguf_quant import quantize_gguf
from floe.tailoring.on_torch.blocks import shape_of
from floe.tailoring.on_torch.hf_export import export_hf
from floe.tailoring.on_torch.prune import prune_in_memory
from floe.tailoring.on_torch.reload import load_folder, log_probs_of
from floe.tailoring.plan import Cut
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tensors import from_hf_folder
from floe.tailoring.text import read_text, sample_text
from floe.tailoring.tune import Settings

Say = Callable[[str], None]
Figures = dict[str, Any]
WIKITEXT = "FLOE_WIKITEXT2"
"""A folder with WikiText-2's valid.txt and test.txt; without it samples of both are used."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """`whole` is the model as served, `original` what is tailored: the same, or its first layers.

    `results` keeps what was measured, for a run that is stopped.
    """

    whole: Original
    original: Original
    results: Path
    calibration: str
    test: str
    wikitext: Path | None
    full: bool

    def timer(self, *, decode_tokens: int = 16, repeats: int = 2) -> EngineTimer:
        """One thread by its CPU time, so that what else the machine does counts little."""
        if not self.full:
            decode_tokens, repeats = min(decode_tokens, 8), 1
        return EngineTimer(
            settings=Settings(threads=1), cpu_time=True, decode_tokens=decode_tokens,
            repeats=repeats,
        )  # fmt: skip


@cache
def open_setup(full: bool) -> Setup:
    """The default model; the quick form cuts it to its first layers, as files.

    Raises:
        NotFound, PullFailed, BadModel: the model cannot be had.
    """
    results = home() / "bench" / f"tailoring-{'full' if full else 'quick'}-{commit() or 'unknown'}"
    results.mkdir(parents=True, exist_ok=True)
    whole = open_original(ModelConfig().name, home=home())
    wikitext = find_wikitext() if full else None
    return Setup(
        whole=whole,
        original=whole if full else first_layers(whole, QUICK_LAYERS, results / "layers"),
        results=results,
        calibration=sample_text() if wikitext is None else read_text(wikitext / "valid.txt"),
        test=read_text(SAMPLE if wikitext is None else wikitext / "test.txt"),
        wikitext=wikitext,
        full=full,
    )


def find_wikitext() -> Path | None:
    """Where WikiText-2 lies, if it does: by the environment, or beside the checkout."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "wikitext2"
    for folder in (os.environ.get(WIKITEXT), beside):
        if folder and (Path(folder) / "test.txt").is_file():
            return Path(folder)
    return None


def first_layers(whole: Original, n_layers: int, folder: Path) -> Original:
    """The model's first layers as a model of its own, in the types of the whole."""
    gguf, hf = folder / "layers.gguf", folder / "hf"
    if not gguf.is_file():
        model = load_folder(whole.folder)
        layers = whole_cut(shape_of(model, base_digest=whole.shape.base_digest)).layers
        cut = Cut(
            base_digest=whole.shape.base_digest, layers=layers[:n_layers],
            head_width=whole.shape.head_width,
        )  # fmt: skip
        small = prune_in_memory(model, cut)
        if not hf.exists():
            export_hf(small, hf, source=whole.folder, cut=cut, reload=reload_here)
        part = folder / "layers-F32.gguf"
        part.unlink(missing_ok=True)
        export_gguf(without_zero_biases(from_hf_folder(hf)), part, metadata_from=whole.gguf)
        quantize_gguf(part, gguf, types_of_file(whole.gguf))
        part.unlink()
    return Original(
        gguf=gguf, folder=hf, name=f"{whole.name}-{n_layers}-layers", names=whole.names,
        shape=shape_of_gguf(read_header(gguf), base_digest=sha256_file(gguf)),
    )  # fmt: skip


def reload_here(folder: Path, texts: Sequence[Sequence[int]]) -> Any:
    """The folder's log-probabilities in this process, where a new one takes too long."""
    return log_probs_of(load_folder(folder), texts)
