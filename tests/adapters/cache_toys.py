"""A store of files with chosen sizes, and an engine that counts what it holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from floe.adapters.cache import AdapterCache
from floe.adapters.entries import Entry
from floe.adapters.mix import MixKey, mix_digest
from floe.adapters.slots import Tier
from floe.core.adapter import AdapterManifest, StoredAdapter
from floe.core.errors import BadAdapter
from floe.core.route import Route, Share


class FileStore:
    """`sizes` by name; the digest of an adapter is "d-" and its name."""

    def __init__(self, root: Path, sizes: dict[str, int]) -> None:
        self._root = root
        self.broken: set[str] = set()
        self.reads: list[str] = []
        self.far: set[str] = set()
        self.fetched: list[str] = []
        self.stored = {}
        for name, size in sizes.items():
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "adapter.gguf").write_bytes(bytes(size))
            manifest = AdapterManifest(
                name=name, digest=f"d-{name}", base_model="toy", architecture="llama", rank=4,
                modules=1, file_bytes=size, created_at="",
            )  # fmt: skip
            self.stored[name] = StoredAdapter(manifest=manifest, folder=folder)

    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(name=name, state="failed", reason=f"{name} is gone")
            if name in self.broken
            else Entry(name=name, state="registered", stored=stored)
            for name, stored in self.stored.items()
        )

    def find(self, name: str, digest: str) -> StoredAdapter:
        name = name or digest.removeprefix("d-")
        if name in self.broken:
            raise BadAdapter(f"{name} is gone")
        return self.stored[name]

    @contextmanager
    def opened(self, stored: StoredAdapter) -> Iterator[Path]:
        self.reads.append(stored.manifest.name)
        yield stored.gguf

    def copy(self, stored: StoredAdapter, out: BinaryIO) -> None:
        self.reads.append(stored.manifest.name)
        out.write(stored.gguf.read_bytes())

    def tier(self, stored: StoredAdapter) -> Tier:
        return "remote" if stored.manifest.name in self.far else "disk"

    def fetch(self, stored: StoredAdapter) -> None:
        self.fetched.append(stored.manifest.name)
        self.far.discard(stored.manifest.name)


class FileMix:
    """Composed files of a fixed size."""

    def __init__(self, root: Path, size: int) -> None:
        self._root, self._size = root, size
        self.asked: list[MixKey] = []

    def has(self, key: MixKey) -> bool:
        return (self._root / mix_digest(key)).exists()

    @contextmanager
    def composed(self, key: MixKey) -> Iterator[Path]:
        self.asked.append(key)
        self._root.mkdir(exist_ok=True)
        path = self._root / mix_digest(key)
        path.write_bytes(bytes(self._size))
        yield path


@dataclass(eq=False)
class Handle:
    key: str
    n_bytes: int
    is_loaded: bool = True


@dataclass
class Memory:
    """An engine's adapters; `gate`, when set, holds loads back until it is opened."""

    gate: threading.Event | None = None
    fail: set[str] = field(default_factory=set)
    fail_unload: bool = False
    held: list[Handle] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    peak_bytes: int = 0
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def load(self, path: Path, /, *, key: str) -> Handle:
        self.threads.add(threading.get_ident())
        self.started.release()
        if self.gate is not None:
            assert self.gate.wait(10)
        self.loads.append(key)
        if key in self.fail:
            raise BadAdapter(f"the engine refused {key}")
        handle = Handle(key, path.stat().st_size)
        self.held.append(handle)
        self.peak_bytes = max(self.peak_bytes, sum(h.n_bytes for h in self.held))
        return handle

    def unload(self, handle: Handle) -> None:
        if self.fail_unload:
            raise RuntimeError("cannot free")
        self.threads.add(threading.get_ident())
        assert handle.is_loaded
        handle.is_loaded = False
        self.held.remove(handle)
        self.unloads.append(handle.key)


def cache(
    store: FileStore, memory: Memory, budget: int, mix: FileMix | None = None, **more: Any
) -> AdapterCache[Handle]:
    return AdapterCache(
        store=store, load=memory.load, unload=memory.unload, budget_bytes=budget, mix=mix, **more
    )


def route(*names: str, weight: float = 0.5) -> Route:
    return Route(shares=tuple(Share(name=n, digest=f"d-{n}", weight=weight) for n in names))


async def settled(kept: AdapterCache[Handle]) -> None:
    """Until nothing is loaded or freed any more."""
    while tasks := kept._admission.loader.tasks:
        await asyncio.wait(tasks)


class Slow:
    """For `run` on a virtual loop: loads take `ms[name]` or `default_ms`, the rest no time."""

    def __init__(self, default_ms: float = 100.0, **ms: float) -> None:
        self.default_ms, self.ms = default_ms, ms
        self.began: list[tuple[float, str]] = []
        self.running = self.most_running = 0

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        if function.__name__ not in ("_swap", "fetch"):
            return function(*args)
        name = args[0].name if function.__name__ == "_swap" else args[0].removeprefix("d-")
        self.began.append((asyncio.get_running_loop().time(), name))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.ms.get(name, self.default_ms) / 1000)
        finally:
            self.running -= 1
        return function(*args)

    @property
    def order(self) -> list[str]:
        return [name for _, name in self.began]


def loop_s() -> float:
    """The running loop's clock, for caches on virtual time; 0 outside of one."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


def slow_cache(
    store: FileStore, memory: Memory, budget: int, slow: Slow, **more: Any
) -> AdapterCache[Handle]:
    """A cache on virtual time."""
    return cache(store, memory, budget, run=slow, clock_s=loop_s, **more)
