"""A route's shares as the adapter cache wants them: merged, keyed, cut to what fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from floe.adapters.mix import MixKey
from floe.core.errors import BadRequest
from floe.core.route import Route, Share


def merged(route: Route) -> list[Share]:
    """One share per content: weights of the same adapter add up, zero means not at all."""
    shares: dict[str, Share] = {}
    for share in route.shares:
        if not math.isfinite(share.weight):
            raise BadRequest(f"the scale of adapter {share.name!r} must be finite", param="lora")
        weight = share.weight + (shares[share.digest].weight if share.digest in shares else 0.0)
        shares[share.digest] = Share(name=share.name, digest=share.digest, weight=weight)
    return [share for share in shares.values() if share.weight]


def mix_key(shares: Sequence[Share]) -> MixKey:
    """As `Route.key`."""
    return tuple(sorted((share.digest, share.weight) for share in shares))


def fitting(
    route: Route, shares: Sequence[Share], size_bytes: Mapping[str, int], *, room_bytes: int
) -> Route:
    """The route with the heaviest shares that fit, weighing as much together as all did."""
    kept = []
    for share in sorted(shares, key=lambda s: s.weight, reverse=True):
        if size_bytes[share.digest] <= room_bytes:
            kept.append(share)
            room_bytes -= size_bytes[share.digest]
    names = ", ".join(s.name for s in kept)
    total, left = sum(s.weight for s in route.shares), sum(s.weight for s in kept)
    factor = total / left if left else 1.0
    return dataclasses.replace(
        route,
        shares=tuple(dataclasses.replace(s, weight=s.weight * factor) for s in kept),
        reason=f"{route.reason}; only {names} fit the memory".lstrip("; "),
    )
