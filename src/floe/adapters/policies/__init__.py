"""Replacement policies by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from floe.adapters.policies.fixed import Static
from floe.adapters.policies.lfu import Gdsf, Lfu, LfuDa
from floe.adapters.policies.lru import Lru
from floe.adapters.policies.s3fifo import S3Fifo
from floe.adapters.policies.sieve import Sieve
from floe.adapters.policy import ReplacementPolicy
from floe.core.errors import BadConfig

BASELINES: Mapping[str, Callable[[], ReplacementPolicy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "lfu-da": LfuDa,
    "gdsf": Gdsf,
    "s3-fifo": S3Fifo,
    "sieve": Sieve,
}
"""Simple policies that need no data; `static-best` (`Static`) needs a set."""


def _seedless(make: Callable[[], ReplacementPolicy]) -> Callable[[int], ReplacementPolicy]:
    return lambda _seed: make()


def _learned(seed: int) -> ReplacementPolicy:
    from floe.adapters.policies.learned import Learned

    return Learned(seed=seed)


POLICIES: Mapping[str, Callable[[int], ReplacementPolicy]] = {
    "learned": _learned,
    **{name: _seedless(make) for name, make in BASELINES.items()},
}
"""Every policy a configuration may name, made from a seed."""


def make_policy(name: str, *, seed: int = 7) -> ReplacementPolicy:
    """A fresh policy.

    Raises:
        BadConfig: no policy of that name.
    """
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(POLICIES)}"
        raise BadConfig(f"no cache policy named {name!r}; {hint}")
    return POLICIES[name](seed)


__all__ = ["BASELINES", "POLICIES", "Static", "make_policy"]
