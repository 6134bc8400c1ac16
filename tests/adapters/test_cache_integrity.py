"""`check_integrity` finds books that do not add up; each fault by its message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_toys import FileStore, Memory, cache, route

from floe.adapters.cache import AdapterCache
from floe.adapters.host import HostMemory, is_supported


def doomed(kept: Any, slot: Any) -> None:
    slot.is_doomed = True


def unused(kept: Any, slot: Any) -> None:
    slot.ahead = "expected"
    slot.pin("t", 0.0)


def miscounted(kept: Any, slot: Any) -> None:
    slot.pins = 3


def failed(kept: Any, slot: Any) -> None:
    slot.handle = None


def renamed(kept: Any, slot: Any) -> None:
    slot.key = "other"


def fat(kept: Any, slot: Any) -> None:
    slot.n_bytes = 201


def ended(kept: Any, slot: Any) -> None:
    kept._admission.loader.pending = -1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (doomed, "slot d-a was forgotten and is there"),
        (unused, "slot d-a is used and counts as unused"),
        (miscounted, "slot d-a has a wrong count of leases"),
        (failed, "slot d-a failed and was not removed"),
        (renamed, "slot d-a is inconsistent"),
        (fat, "resident bytes exceed the budget"),
        (ended, "more loads ended than began"),
    ],
)
async def test_every_fault_is_found(
    tmp_path: Path, spoil: Callable[[Any, Any], None], message: str
) -> None:
    kept = cache(FileStore(tmp_path, {"a": 100}), Memory(), 200)
    async with kept.lease(route("a")):
        pass
    kept.check_integrity()
    slot = kept._table.slots["d-a"]
    before, pending = dict(vars(slot)), kept._admission.loader.pending
    before["holders"] = slot.holders.copy()
    spoil(kept, slot)
    with pytest.raises(RuntimeError, match=f"adapter cache: {message}"):
        kept.check_integrity()
    vars(slot).update(before)
    kept._admission.loader.pending = pending


@pytest.mark.skipif(not is_supported(), reason="this system has no memfd")
def test_faults_of_host_memory_are_found() -> None:
    host = HostMemory(budget_bytes=4096)
    with host.opened("k", 10, lambda out: out.write(b"x") and None):
        pass
    host.check()
    held = host._held["k"]
    held.pins = -1
    with pytest.raises(RuntimeError, match="host memory: file k is inconsistent"):
        host.check()
    held.pins, held.n_bytes = 0, 8192
    with pytest.raises(RuntimeError, match="host memory: files exceed the budget"):
        host.check()
    host.close()
    with pytest.raises(OSError):
        os.fstat(held.fd)


async def test_a_slot_is_dropped_once(tmp_path: Path) -> None:
    kept: AdapterCache[Any] = cache(FileStore(tmp_path, {"a": 100}), Memory(), 200)
    async with kept.lease(route("a")):
        pass
    slot = kept._table.slots["d-a"]
    await kept._admission.drop(slot)
    with pytest.raises(RuntimeError, match="'a' is dropped twice"):
        kept._admission.drop(slot)
