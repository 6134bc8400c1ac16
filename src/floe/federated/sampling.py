"""Which examples (or clients) take part in a step; the accountant reads the same record.

The record draws the batches and says what may be claimed for them, so that batches of one kind
cannot be accounted as another (bug-log C13).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig

Kind = Literal["poisson", "fixed", "shuffled", "all"]
Adjacency = Literal["add_remove", "replace_one"]
Unit = Literal["example", "client"]
_FUZZ = 1e-9


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the members of a step are drawn; `rate` is the expected share of them.

    `poisson`: each is in with probability `rate`, on its own; batches differ in size and may be
    empty. `fixed`: floor(rate n) different ones, drawn anew each step. `shuffled`: batches of
    that size, cut from a new order in each pass; nothing is claimed for chance, and each member
    counts once in a pass. `all`: everybody in every step.
    """

    kind: Kind
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Raises BadConfig for an unknown kind or a rate outside (0, 1] (C11)."""
        if self.kind not in get_args(Kind):
            raise BadConfig(
                f"no sampling is called {self.kind!r}; known: {', '.join(get_args(Kind))}",
                param="sampling",
            )
        if not (math.isfinite(self.rate) and 0 < self.rate <= 1):
            raise BadConfig(
                f"the sampling rate is {self.rate}; it must be above 0 and at most 1", param="rate"
            )
        if self.kind == "all" and self.rate != 1:
            raise BadConfig(
                f'sampling "all" takes everybody, so its rate is 1, not {self.rate}; use '
                '"poisson", "fixed" or "shuffled" for a part',
                param="rate",
            )

    def size(self, n: int) -> int:
        """Members of a batch out of `n`; the expected number for "poisson", at least 1.

        Raises:
            BadConfig: fewer than one whole member at this rate, where batches have a fixed size.
        """
        if n < 1:
            raise BadConfig("there is nobody to draw from: n is below 1", param="n")
        if self.kind == "poisson":
            return max(1, round(self.rate * n))
        size = math.floor(self.rate * n + _FUZZ)
        if size < 1:
            raise BadConfig(
                f"a rate of {self.rate:g} is less than one of {n}; raise it to {1 / n:.4g} or use "
                '"poisson" sampling',
                param="rate",
            )
        return size

    def passes(self, steps: int) -> int:
        """The most often one member takes part in `steps` steps without a claim for chance."""
        return math.ceil(steps * self.rate - _FUZZ)

    def draw(self, *, n: int, steps: int, seed: int) -> Draws:
        """`steps` batches of places below `n`; the same ones for the same seed."""
        self.size(n)
        return Draws(sampling=self, n=n, steps=steps, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Batches that know how they were drawn. Iterate once or more; each time the same."""

    sampling: Sampling
    n: int
    steps: int
    seed: int = field(repr=False)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """One array of places for each step, sorted within a step; possibly empty (C16)."""
        rng = np.random.default_rng(self.seed)
        if self.sampling.kind == "shuffled":
            yield from self._cut(rng)
            return
        size = self.sampling.size(self.n)
        for _ in range(self.steps):
            if self.sampling.kind == "poisson":
                yield np.flatnonzero(rng.random(self.n) < self.sampling.rate)
            else:
                yield np.sort(rng.choice(self.n, size=size, replace=False))

    def _cut(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        size, left = self.sampling.size(self.n), self.steps
        while left > 0:
            order = rng.permutation(self.n)
            for start in range(0, self.n, size):
                if left > 0:
                    yield np.sort(order[start : start + size])
                left -= 1


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """`steps` releases of a clipped sum with Gaussian noise.

    `noise_multiplier` is the noise's standard deviation over the clip norm. `unit` says who is
    hidden: one example of a device (steps are its optimizer steps) or one client (steps are
    rounds); mechanisms of different units are never added up.
    """

    noise_multiplier: float
    sampling: Sampling
    steps: int = 1
    unit: Unit = "example"

    def __post_init__(self) -> None:
        """Raises BadConfig for a noise that is not finite and above 0, or steps below 1 (C11)."""
        positive(self.noise_multiplier, what="noise multiplier", param="noise_multiplier")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise BadConfig(
                f"the number of steps is {self.steps}; it must be a whole number from 1",
                param="steps",
            )
        if self.unit not in get_args(Unit):
            raise BadConfig(f'the unit is {self.unit!r}; use "example" or "client"', param="unit")


def positive(value: float, *, what: str, param: str) -> float:
    """`value` where it is a finite number above 0.

    Raises:
        BadConfig: it is not, such as NaN, infinity, 0 or a truth value (C11).
    """
    if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise BadConfig(f"the {what} is {value}; it must be finite and above 0", param=param)
    return float(value)


def same_sampling(declared: Sampling, used: Sampling) -> None:
    """Nothing, where batches are drawn as they are accounted for.

    Raises:
        BadConfig: they are not; the epsilon would not hold (C13).
    """
    if declared != used:
        raise BadConfig(
            f'the batches are drawn as "{used.kind}" at a rate of {used.rate:g} but accounted as '
            f'"{declared.kind}" at {declared.rate:g}: the epsilon would not hold. Draw them with '
            "the Sampling that the accountant is given",
            param="sampling",
        )
