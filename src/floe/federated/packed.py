"""An adapter whose arrays lie in one block, as `wire` decodes it: it can be worked on as a whole.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floe.federated.update import AdapterState, Factors, FloatArray

Places = tuple[tuple[str, int, int, int], ...]
"""(module, R, O, I) in the order of the block."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedState(AdapterState):
    """`modules` look into `flat`: each module's A (R, I), then its B turned (R, O)."""

    flat: FloatArray
    places: Places


def views(flat: FloatArray, places: Sequence[tuple[str, int, int, int]]) -> dict[str, Factors]:
    """The factors that lie in a block; nothing is copied."""
    out, at = {}, 0
    for name, rank, n_outputs, n_inputs in places:
        middle, end = at + rank * n_inputs, at + rank * (n_inputs + n_outputs)
        out[name] = Factors(
            a_RI=flat[at:middle].reshape(rank, n_inputs),
            b_OR=flat[middle:end].reshape(rank, n_outputs).T,
        )
        at = end
    return out


def places_of(state: AdapterState) -> Places:
    """Where the modules of an adapter would lie."""
    if isinstance(state, PackedState):
        return state.places
    return tuple((name, f.rank, *f.shape) for name, f in state.modules.items())


def n_values(places: Sequence[tuple[str, int, int, int]]) -> int:
    """The length of a block."""
    return sum(rank * (n_outputs + n_inputs) for _, rank, n_outputs, n_inputs in places)
