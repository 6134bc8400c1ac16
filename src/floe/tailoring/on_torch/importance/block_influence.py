"""Block influence: one minus the mean cosine of the residual stream before and after (ShortGPT).

It ranks whole layers (arXiv 2403.03853) and, measured around each alone, attention and FFN.
Inside a layer it says nothing; heads and channels are ranked there by Wanda-sp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from floe.tailoring.base import LayerImportance
from floe.tailoring.on_torch.importance.wanda import WandaSp
from floe.tailoring.statistics import Statistics


class BlockInfluence:
    """Implements base.Importance."""

    name = "block-influence"

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        inside = WandaSp(self._statistics).measure()
        return tuple(
            replace(
                record,
                attention=layer.attention_change,
                ffn=layer.ffn_change,
                block=layer.block_change,
            )
            for record, layer in zip(inside, self._statistics.layers, strict=True)
        )

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on."""
        return {**self._statistics.facts(), "inside_layers": WandaSp.name}
