"""What is added up where the server sees sums alone: the change of every B, as one vector.

All devices have one A with orthonormal rows, lower ranks its first rows, so that zeros after a
device's own columns say "not changed" and the mean of vectors is the mean of changes.

Legend: R rank, I inputs of a linear layer, O its outputs, N values of all B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig, BadRound, BadUpdate
from floe.federated.report import Refusal
from floe.federated.shields.release import over_shared_a, releasable
from floe.federated.shields.secagg import FixedPoint, out_of_range
from floe.federated.start import fresh_state
from floe.federated.update import AdapterState, Factors

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SecureTerms:
    """What both ends of a secure sum must hold alike. `rank` and `a_seed` are the shared A's.

    A sum is opened with at least `least` updates in it: fewer than three would show one of them to
    another. Each counts as one.
    """

    rank: int
    a_seed: int
    least: int
    fixed: FixedPoint

    def __post_init__(self) -> None:
        """Raises BadConfig for fewer than three."""
        if self.least < 3:
            raise BadConfig(
                f"a secure sum of {self.least} devices tells each the other's: 3 is the least",
                param="federated.min_clients",
            )

    @property
    def most(self) -> int:
        """The most updates in one sum; Flower counts one level more than `FixedPoint`."""
        return (self.fixed.modulus - 1) // self.fixed.levels

    def threshold(self, n: int) -> int:
        """Of `n` devices so many must be there to open the sum.

        More than half, so that no two sums of one round can be opened.
        """
        return max(self.least, n // 2 + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SecureSum:
    """What a round brought. `mean` is the mean of the changes of `clients`, None where the sum was
    never opened, for the reason `why`. `refused`: those whose signature did not hold; `failed`:
    those who sent nothing, with what they say themselves."""

    mean: Vector | None = None
    why: str = ""
    clients: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    failed: tuple[Refusal, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0


def change_vector(start: AdapterState | None, state: AdapterState, terms: SecureTerms) -> Vector:
    """How far B moved from `start`, of every layer in order of name: N values.

    Raises:
        BadUpdate: a value that is not finite or would be cut off (C25), or another A.
    """
    after = over_shared_a(releasable(state), rank=terms.rank, a_seed=terms.a_seed)
    before = _over_a(start, terms)
    if before is not None and before.modules.keys() != after.modules.keys():
        raise BadUpdate("the update has other layers than its start", reason="wrong_keys")
    parts = []
    for name, factors in sorted(after.modules.items()):
        b_OR = factors.b_OR.astype(np.float64)
        parts.append((b_OR if before is None else b_OR - before.modules[name].b_OR).ravel())
    vector_N = np.concatenate(parts)
    outside = out_of_range(vector_N, terms.fixed.clipping_range)
    if outside:
        raise BadUpdate(
            f"{outside} of {vector_N.size} values moved further than the secure sum's range of "
            f"+-{terms.fixed.clipping_range:g}; they would be cut off. Set federated.clip_updates",
            reason="out_of_range",
        )
    return vector_N


def moved(
    start: AdapterState | None,
    mean_N: Vector,
    *,
    base_digest: str,
    shapes: Mapping[str, tuple[int, int]],
    terms: SecureTerms,
) -> AdapterState:
    """`start` (None = the plain base) after the mean change, over the shared A at its rank.

    Raises:
        BadRound: the sum is of other layers.
    """
    before = _over_a(start, terms)
    state = before or fresh_state(base_digest, shapes, rank=terms.rank, seed=terms.a_seed)
    size = sum(f.b_OR.size for f in state.modules.values())
    if mean_N.shape != (size,) or not np.isfinite(mean_N).all():
        raise BadRound(
            f"the sum has the shape {mean_N.shape} and {size} finite values were awaited: devices "
            "and server need one base, federated.rank and federated.seed"
        )
    modules, at = {}, 0
    for name, factors in sorted(state.modules.items()):
        change_OR = mean_N[at : at + factors.b_OR.size].reshape(factors.b_OR.shape)
        b_OR = (factors.b_OR + change_OR).astype(np.float32)
        modules[name] = Factors(a_RI=factors.a_RI, b_OR=b_OR)
        at += factors.b_OR.size
    return AdapterState(base_digest=base_digest, modules=modules)


def _over_a(state: AdapterState | None, terms: SecureTerms) -> AdapterState | None:
    if state is None:
        return None
    return over_shared_a(releasable(state), rank=terms.rank, a_seed=terms.a_seed)
