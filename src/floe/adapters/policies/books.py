"""What the simple policies share: books that cost nothing where a policy keeps none."""

# ruff: noqa: ARG002 - a policy is told more than each one needs
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from floe.adapters.policy import Use
from floe.core.errors import BadConfig

_STRANGER = (0.0, 0)


def take(
    order: Iterable[str],
    need_bytes: int,
    evictable: Mapping[str, int],
    *,
    known: Mapping[str, object],
) -> list[str]:
    """Keys from `evictable` until `need_bytes` are reached: those not in `known`, then `order`."""
    found: list[str] = []
    strangers = strangers_in(evictable, known)
    for keys in (strangers, order):
        for key in keys:
            if need_bytes <= 0:
                return found
            n_bytes = evictable.get(key)
            if n_bytes is not None:
                found.append(key)
                need_bytes -= n_bytes
    return found


def strangers_in(evictable: Mapping[str, int], known: Mapping[str, object]) -> list[str]:
    """Keys of `evictable` that are not in `known`."""
    if evictable.keys() <= known.keys():
        return []
    return [key for key in evictable if key not in known]


def lowest(
    need_bytes: int,
    evictable: Mapping[str, int],
    ranks: Mapping[str, tuple[float, int]],
) -> list[str]:
    """Keys of `evictable` from the lowest rank up until `need_bytes` are reached."""
    if need_bytes <= 0 or not evictable:
        return []
    if evictable.keys() <= ranks.keys():
        rank: Callable[[str], tuple[float, int]] = ranks.__getitem__
    else:
        rank = {key: ranks.get(key, _STRANGER) for key in evictable}.__getitem__
    first = min(evictable, key=rank)
    if evictable[first] >= need_bytes:
        return [first]
    found: list[str] = []
    for key in sorted(evictable, key=rank):
        if need_bytes <= 0:
            break
        found.append(key)
        need_bytes -= evictable[key]
    return found


class Books:
    """A policy that learns nothing; the others change what they need."""

    name = ""

    def used(self, use: Use, *, resident: bool) -> None:
        """See `ReplacementPolicy`."""

    def admitted(self, use: Use, *, prefetched: bool = False) -> None:
        """See `ReplacementPolicy`."""

    def victims(self, need_bytes: int, evictable: Mapping[str, int], *, at_s: float) -> list[str]:
        """See `ReplacementPolicy`."""
        raise NotImplementedError

    def evicted(self, key: str) -> None:
        """See `ReplacementPolicy`."""

    def forget(self, key: str) -> None:
        """See `ReplacementPolicy`."""
        self.evicted(key)

    def likely(self, *, at_s: float, limit: int) -> Sequence[tuple[str, float]]:
        """No idea."""
        return ()

    def state(self) -> dict[str, object]:
        """Nothing is learned."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take up the empty state.

        Raises:
            BadConfig: there is something in it.
        """
        if state:
            raise BadConfig(
                f"the cache policy {self.name!r} keeps no state, but a saved state was given "
                f"with {', '.join(sorted(map(str, state)))}. Delete the state file, or set "
                "adapters.policy to the policy that wrote it"
            )
