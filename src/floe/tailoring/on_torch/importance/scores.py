"""Scores of single heads and channels put together to a layer's record.

Legend: K KV heads, G query heads of a KV head, I inputs of the output projection, F FFN channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from floe.tailoring.base import LayerImportance
from floe.tailoring.plan import ModelShape
from floe.tailoring.statistics import Array, Groups, Inputs, Statistics


class ByChannels(ABC):
    """A criterion that scores the inputs of the two output projections. Implements base.Importance.

    Channels are those of the values of heads, and the FFN's.
    """

    name: str

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def measure(self) -> tuple[LayerImportance, ...]:
        """One record a layer."""
        return tuple(
            from_channels(self._score(s.attention), self._score(s.ffn), self._statistics.shape)
            for s in self._statistics.layers
        )

    def facts(self) -> Mapping[str, float | int | str]:
        """What it was measured on."""
        return self._statistics.facts()

    @staticmethod
    @abstractmethod
    def _score(inputs: Inputs) -> Array:
        """One number a channel, larger = keep."""


def from_channels(attention_I: Array, ffn_F: Array, shape: ModelShape) -> LayerImportance:
    """A head is the sum of its channels, a KV group the sum of its query heads."""
    q_KG = attention_I.reshape(shape.n_kv_heads, shape.q_per_kv, shape.head_width).sum(2)
    return summed(q_KG.sum(1), q_KG, ffn_F)


def from_groups(groups: Groups) -> LayerImportance:
    """A KV group is its own K and V rows and all its query heads."""
    return summed(groups.kv_K + groups.q_KG.sum(1), groups.q_KG, groups.ffn_F)


def summed(kv_K: Array, q_KG: Array, ffn_F: Array) -> LayerImportance:
    """A half is the sum of its groups, the block the sum of its halves."""
    attention, ffn = float(kv_K.sum()), float(ffn_F.sum())
    return LayerImportance(
        kv_K=kv_K, q_KG=q_KG, ffn_F=ffn_F, attention=attention, ffn=ffn, block=attention + ffn
    )
