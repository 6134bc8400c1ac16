"""After every test, the books of every adapter cache that it made must add up."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from floe.adapters.cache import AdapterCache


@pytest.fixture(autouse=True)
def _integrity(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: weakref.WeakSet[AdapterCache[Any]] = weakref.WeakSet()
    begin = AdapterCache.__init__

    def remembered(self: AdapterCache[Any], *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        made.add(self)

    monkeypatch.setattr(AdapterCache, "__init__", remembered)
    yield
    for kept in made:
        kept.check_integrity()
