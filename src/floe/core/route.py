"""Which adapters answer a request, in which shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floe.core.errors import BadAdapter

How = Literal["routed", "explicit", "base"]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One adapter of a route, by content digest; `weight` is the scale it is applied with."""

    name: str
    digest: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class Route:
    """Adapters with their weights; empty = the plain base.

    Shares of a routed request sum to 1; an explicit mix is applied as asked. `scores` are the
    router's shares over every candidate, for `floe explain`.
    """

    shares: tuple[Share, ...] = ()
    how: How = "base"
    reason: str = ""
    scores: tuple[tuple[str, float], ...] = ()

    @property
    def key(self) -> tuple[tuple[str, float], ...]:
        """(digest, weight) pairs in a canonical order: the identity of everything derived."""
        return tuple(sorted((s.digest, s.weight) for s in self.shares))


class TooLarge(BadAdapter):
    """The route's adapters do not fit the memory together; `fitting` is what of it would.

    Its shares are the heaviest that fit, weighing together what all did; none = the base.
    """

    def __init__(self, message: str, *, fitting: Route) -> None:
        super().__init__(message)
        self.fitting = fitting
