"""A model's folder and a text opened for a search: importances measured, quality ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from floe.core.errors import BadModel, BadPlan
from floe.tailoring.on_torch.blocks import Model, layers_of, shape_of
from floe.tailoring.on_torch.collect import collect
from floe.tailoring.on_torch.quality import TorchQuality, perplexity
from floe.tailoring.on_torch.reload import load_folder
from floe.tailoring.on_torch.weighted_rounding import WeightedRounding
from floe.tailoring.plan import ModelShape, Plan
from floe.tailoring.statistics import Statistics
from floe.tailoring.text import windows

_ROUNDING_WINDOWS = 2
CRITERIA = ("flap", "taylor", "wanda-sp", "magnitude", "block-influence")


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much text is used: windows and their tokens, to rank heads and to judge plans.

    The whole SmolLM2-135M takes some 3.5 s of one core for 1,024 judged tokens, a half-size plan
    1.8 s, and the ranking 8 s for 1,024 ranked tokens.
    """

    judged_windows: int = 8
    judged_width: int = 128
    ranked_windows: int = 8
    ranked_width: int = 256
    taylor_tokens: int = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """The model, its statistics, and the quality of its plans."""

    model: Model
    shape: ModelShape
    statistics: Statistics
    quality: TorchQuality
    tokenizer: Any
    rounding: WeightedRounding

    def held_out(self, plan: Plan, text: str, *, n_windows: int, width: int) -> float:
        """Perplexity of a plan on another text, without recovery."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        judged = torch.tensor(windows(ids, n_windows=n_windows, width=width))
        return perplexity(self.quality.build(plan), judged)


def open_quality(
    folder: Path,
    text: str,
    *,
    shape: ModelShape | None = None,
    base_digest: str = "",
    amounts: Amounts | None = None,
    n_layers: int | None = None,
    criteria: Sequence[str] = CRITERIA,
    threads: int = 1,
    seed: int = 0,
) -> Opened:
    """Load a Hugging Face folder and measure what a search needs; nothing is written.

    `shape` is the one plans are for (a device profile's), else it is read with `base_digest`. Text
    from its first half ranks heads and channels, from its second half judges plans. `n_layers`
    keeps the first layers alone, for quick trials. Torch is set to `threads`.

    Raises:
        BadModel: the folder holds no model that can be cut. BadPlan: `shape` is another model's.
        BadRequest: the text is too short.
    """
    torch.set_num_threads(threads)
    amounts = amounts or Amounts()
    model = load_folder(folder)
    if n_layers is not None:
        model.model.layers = torch.nn.ModuleList(layers_of(model)[:n_layers])
        model.config.num_hidden_layers = n_layers
    found = shape_of(model, base_digest=shape.base_digest if shape else base_digest)
    if shape is not None and dataclasses.replace(found, n_vocab=shape.n_vocab) != shape:
        raise BadPlan(
            f"the device profile is of a model with {shape.n_layers} layers of width "
            f"{shape.width}, {folder} has {found.n_layers} of {found.width}; profile this one"
        )
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BadModel(f"{folder} has no tokenizer.json; perplexity needs the tokenizer")
    tokenizer = Tokenizer.from_file(str(path))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    middle = len(ids) // 2
    ranked = windows(ids[:middle], n_windows=amounts.ranked_windows, width=amounts.ranked_width)
    judged = windows(ids[middle:], n_windows=amounts.judged_windows, width=amounts.judged_width)
    statistics = collect(model, ranked, shape=found, taylor_tokens=amounts.taylor_tokens)
    rounding = WeightedRounding(ranked[:_ROUNDING_WINDOWS])
    quality = TorchQuality(
        model=model, shape=found, statistics=statistics, windows=judged, importances=criteria,
        seed=seed, rounding=rounding,
    )  # fmt: skip
    return Opened(
        model=model, shape=found, statistics=statistics, quality=quality, tokenizer=tokenizer,
        rounding=rounding,
    )  # fmt: skip
