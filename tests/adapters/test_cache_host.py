"""Host memory: read once, sealed, bounded in whole pages; a reload touches no disk."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import adapter_toys as toys
import pytest
from cache_toys import FileStore, Memory, cache, route
from hypothesis import given
from hypothesis import strategies as st

from floe.adapters.cache import AdapterCache
from floe.adapters.host import HostMemory, is_supported
from floe.adapters.store import AdapterStore
from floe.core.errors import BadAdapter
from floe.core.route import Route, Share

PAGE = 4096
pytestmark = pytest.mark.skipif(not is_supported(), reason="this system has no memfd")


@pytest.fixture
def host() -> Iterator[HostMemory]:
    memory = HostMemory(budget_bytes=3 * PAGE)
    yield memory
    memory.check()
    memory.close()
    assert memory.used_bytes == 0


def filler(data: bytes, calls: list[int] | None = None):  # type: ignore[no-untyped-def]
    def fill(out: BinaryIO) -> None:
        out.write(data)
        if calls is not None:
            calls.append(1)

    return fill


def test_a_file_is_filled_once_and_opened_by_path(host: HostMemory) -> None:
    calls: list[int] = []
    for _ in range(3):
        with host.opened("k", 5, filler(b"bytes", calls)) as path:
            assert path is not None and path.read_bytes() == b"bytes"
            assert path.stat().st_size == 5
    assert (len(calls), host.hits, host.used_bytes) == (1, 2, PAGE)
    assert host.has("k") and not host.has("j")


def test_a05_what_was_checked_cannot_be_changed(host: HostMemory) -> None:
    with host.opened("k", 5, filler(b"bytes")) as path:
        assert path is not None
        with pytest.raises(OSError) as refused, path.open("r+b") as file:
            file.write(b"other")
            file.flush()
        assert refused.value.errno == errno.EPERM
        with pytest.raises(OSError):
            os.truncate(path, 1)
        assert path.read_bytes() == b"bytes"


def test_the_least_recently_opened_goes_and_open_ones_stay(host: HostMemory) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(host.opened("a", PAGE, filler(b"a")))
        for key in "bcd":
            with host.opened(key, PAGE, filler(key.encode())):
                pass
        assert [host.has(k) for k in "abcd"] == [True, False, True, True]
        assert first is not None and first.read_bytes() == b"a"
        stack.enter_context(host.opened("c", PAGE, filler(b"")))
        stack.enter_context(host.opened("d", PAGE, filler(b"")))
        with host.opened("e", PAGE, filler(b"e")) as path:
            assert path is None  # no room, and nothing was closed for it
        host.forget("a")
        assert first.read_bytes() == b"a"  # still open here
        assert not host.has("a")


def test_f01_a_file_larger_than_all_of_it_is_not_kept(host: HostMemory) -> None:
    with host.opened("a", PAGE, filler(b"a")):
        pass
    with host.opened("big", 3 * PAGE + 1, filler(b"")) as path:
        assert path is None
    with host.opened("lies", 10, filler(bytes(PAGE + 1))) as path:
        assert path is None  # larger than announced
    assert host.has("a") and not host.has("big") and not host.has("lies")


def test_a_failed_filling_leaves_nothing(host: HostMemory) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    def fill(out: BinaryIO) -> None:
        out.write(b"half")
        raise BadAdapter("changed on disk")

    with pytest.raises(BadAdapter, match="changed on disk"), host.opened("a", 10, fill):
        pass
    assert not host.has("a") and host.used_bytes == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(1, 3 * PAGE), st.booleans()), max_size=40
    )
)
def test_host_memory_equals_an_ordered_dict(steps: list[tuple[str, int, bool]]) -> None:
    memory, twin = HostMemory(budget_bytes=4 * PAGE), OrderedDict[str, int]()
    sizes: dict[str, int] = {}
    for key, n_bytes, forget in steps:
        size = sizes.setdefault(key, n_bytes)
        if forget:
            memory.forget(key)
            twin.pop(key, None)
        else:
            with memory.opened(key, size, filler(bytes(size))) as path:
                assert path is not None and path.stat().st_size == size
            pages = -(-size // PAGE)
            while key not in twin and sum(twin.values()) + pages > 4:
                twin.popitem(last=False)
            twin[key] = pages
            twin.move_to_end(key)
        memory.check()
        assert {k for k in "abcdef" if memory.has(k)} == set(twin)
    memory.close()


async def test_a_reload_reads_no_disk(tmp_path: Path, host: HostMemory) -> None:
    store, memory = FileStore(tmp_path, {"a": 100, "b": 100, "c": 100}), Memory()
    kept = cache(store, memory, 100, host=host)
    for name in "abcabc":
        async with kept.lease(route(name)):
            pass
    assert store.reads == ["a", "b", "c"]
    assert len(memory.loads) == 6
    counters = kept.counters()
    assert (counters.host_hits, counters.host_bytes) == (3, 3 * PAGE)
    assert {row.name: row.tier for row in kept.snapshot()} == {
        "a": "host",
        "b": "host",
        "c": "memory",
    }
    await kept.forget("d-a")
    assert not host.has("d-a")


async def test_a05_a_changed_file_does_not_reach_host_memory(
    tmp_path: Path, host: HostMemory
) -> None:
    store, memory = AdapterStore(tmp_path / "store", toys.model()), Memory()
    stored = store.add(toys.folder(tmp_path / "one"))
    data = stored.gguf.read_bytes()
    stored.gguf.write_bytes(data[:-1] + b"x")
    kept = AdapterCache(
        store=store, load=memory.load, unload=memory.unload, budget_bytes=1 << 20, host=host
    )
    one = Route(shares=(Share(name="one", digest=stored.manifest.digest, weight=1.0),))
    with pytest.raises(BadAdapter, match="'one': its file was changed on disk"):
        async with kept.lease(one):
            pass
    assert host.used_bytes == 0
    stored.gguf.write_bytes(data)
    async with kept.lease(one):
        pass
    await kept.forget(stored.manifest.digest)
    stored.gguf.unlink()
    with pytest.raises(BadAdapter, match="is gone"):
        async with kept.lease(one):
            pass


async def test_messages_name_the_adapter_not_a_descriptor(tmp_path: Path, host: HostMemory) -> None:
    store, memory = FileStore(tmp_path, {"a": 100}), Memory()

    def refuse(path: Path, /, *, key: str) -> object:
        raise BadAdapter(f"llama.cpp refused the adapter {path}: odd")

    kept = AdapterCache(
        store=store,
        load=refuse,
        unload=memory.unload,
        budget_bytes=100,
        host=host,  # type: ignore
    )
    with pytest.raises(BadAdapter, match=r"^llama.cpp refused the adapter 'a': odd$"):
        async with kept.lease(route("a")):
            pass
