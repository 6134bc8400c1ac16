"""What a request makes of a mix that does not fit: the heaviest part, or a clear refusal."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cache_toys import FileStore, Memory, cache

from floe.answer import _leased
from floe.core.request import Request
from floe.core.route import Route, Share, TooLarge


class Parts:
    def __init__(self, adapters: Any, router: Any) -> None:
        self.adapters, self.router = adapters, router


def mix(how: Any) -> Route:
    shares = [Share(name=n, digest=f"d-{n}", weight=w) for n, w in (("a", 0.4), ("b", 0.6))]
    return Route(shares=tuple(shares), how=how, reason="by content")


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    kept = cache(FileStore(tmp_path, {"a": 100, "b": 100}), Memory(), 150)
    return Parts(kept, router=None)


async def test_a_routed_mix_goes_on_with_the_heaviest_that_fits(parts: Any) -> None:
    request = Request(id="1", prompt="x", tenant="t")
    async with AsyncExitStack() as stack:
        route, adapters = await _leased(stack, parts, request, mix("routed"))
        assert [(h.key, w) for h, w in adapters] == [("d-b", 1.0)]
        assert [(s.name, s.weight) for s in route.shares] == [("b", 1.0)]
        assert route.reason == "by content; only b fit the memory"
    assert parts.adapters.by_tenant()["t"].misses == 1


async def test_an_explicit_mix_that_does_not_fit_is_refused(parts: Any) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(TooLarge, match="adapters a, b need 200 bytes in memory, the budget"):
            await _leased(stack, parts, Request(id="1", prompt="x"), mix("explicit"))
    assert parts.adapters.counters().misses == 0
