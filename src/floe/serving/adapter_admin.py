"""The operator's hand on the adapter store of a running server.

Reading, checking and writing happen in a thread; what the engine holds of an adapter is freed when
the last request that uses it has ended.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from floe.adapters.store import AdapterStore
from floe.core.adapter import StoredAdapter
from floe.core.errors import BadAdapter, BadRequest, Busy, NotFound
from floe.core.route import Route, Share
from floe.serving.errors import Forbidden

_RULE = "lora_path is relative to serve.adapter_folder and stays inside it"


class Cache(Protocol):
    """What is asked of the adapter cache."""

    def lease(self, route: Route) -> AbstractAsyncContextManager[Any]:
        """Its adapters in memory while the block runs; raises BadAdapter, Busy."""
        ...

    def start(self) -> Awaitable[None]:
        """Names may mean something else now: keep in memory what is pinned."""
        ...

    def forget(self, digest: str) -> Awaitable[None]:
        """Free the content, at once or when the last lease of it ends."""
        ...


class StoreAdmin:
    """Loads and unloads adapters, one change at a time.

    `folder` "" switches loading off. `gone` hears the digest of content no name has any more.
    """

    def __init__(
        self,
        *,
        store: AdapterStore,
        cache: Cache,
        folder: str,
        pinned: Collection[str] = (),
        gone: Callable[[str], None] = lambda _digest: None,
    ) -> None:
        self._store, self._cache, self._gone = store, cache, gone
        self._pinned = frozenset(pinned)
        self._folder = Path(folder).expanduser() if folder else None
        self._turn = asyncio.Lock()

    async def load(self, name: str, path: str, *, replace: bool) -> None:
        """Put the adapter at `path` into the store and, where there is room, into memory.

        The same content under the same name is no change. An adapter that the engine refuses is
        taken out again.

        Raises:
            Forbidden: no folder is configured. NotFound: nothing at `path` that may be read.
            BadRequest: a name that is not allowed or taken. BadAdapter: it cannot be applied.
        """
        if self._folder is None:
            raise Forbidden(
                "loading is off: set serve.adapter_folder to the folder that adapters may come "
                "from, and start the server again"
            )
        async with self._turn:
            source = await asyncio.to_thread(inside, self._folder, path)
            with TemporaryDirectory(prefix="floe-replaced-") as kept:
                before = await asyncio.to_thread(self._kept, name, Path(kept))
                stored = await asyncio.to_thread(self._added, source, name, replace)
                digest = stored.manifest.digest
                same = before is not None and before.manifest.digest == digest
                try:
                    await self._try(stored)
                except BadAdapter:
                    if not same:
                        await asyncio.to_thread(self._undo, name, before)
                        await self._forget(digest)
                    raise
            await self._cache.start()
            if before is not None and not same:
                await self._forget(before.manifest.digest)

    async def unload(self, name: str) -> None:
        """Take the name out of the store.

        Raises:
            NotFound: no such name. BadRequest: configuration pins it, the next start would fail.
        """
        if name in self._pinned:
            raise BadRequest(
                f"adapter {name!r} is named in adapters.pinned: take it out of there first",
                param="lora_name",
            )
        async with self._turn:
            stored = await asyncio.to_thread(self._named, name)
            await asyncio.to_thread(self._store.remove, name)
            if stored is not None:
                await self._forget(stored.manifest.digest)

    def _added(self, source: Path, name: str, replace: bool) -> StoredAdapter:
        try:
            return self._store.add(source, name=name, replace=replace)
        except BadRequest as error:
            if self._named(name) is None or replace:
                raise
            raise BadRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
                param="lora_name",
            ) from error

    def _named(self, name: str) -> StoredAdapter | None:
        """What a name means now; None where it means nothing that can be served."""
        return next((s for s in self._store.list() if s.manifest.name == name), None)

    def _kept(self, name: str, folder: Path) -> StoredAdapter | None:
        """What a name means now, with a copy of its file in `folder`."""
        stored = self._named(name)
        if stored is None:
            return None
        kept = StoredAdapter(manifest=stored.manifest, folder=folder)
        shutil.copyfile(stored.gguf, kept.gguf)
        return kept

    def _undo(self, name: str, before: StoredAdapter | None) -> None:
        """Give a name back what it meant."""
        if before is None:
            self._store.remove(name)
            return
        self._store.put_back(before.manifest, before.gguf)

    async def _try(self, stored: StoredAdapter) -> None:
        """Load it as a request would; adapters in use that fill the memory put it off."""
        manifest = stored.manifest
        share = Share(name=manifest.name, digest=manifest.digest, weight=1.0)
        try:
            async with self._cache.lease(Route(shares=(share,), how="explicit")):
                pass
        except Busy:
            return

    async def _forget(self, digest: str) -> None:
        """Free the content's memory, unless another name has it too."""
        names = await asyncio.to_thread(self._store.list)
        if all(s.manifest.digest != digest for s in names):
            await self._cache.forget(digest)
            self._gone(digest)


def inside(folder: Path, path: str) -> Path:
    """The folder or file at `path` below `folder`, links resolved.

    Raises:
        NotFound: nothing there, a path that leads out, or a link that does (bug-log A29).
    """
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(path)
        if pure.is_absolute() or pure.drive or ".." in pure.parts or "\0" in path:
            raise NotFound(f"no adapter there: {_RULE}, without '..'", param="lora_path")
    try:
        root = folder.resolve(strict=True)
        source = (root / path).resolve(strict=True)
        parts = [source, *(source.iterdir() if source.is_dir() else ())]
        leads_out = any(not p.resolve().is_relative_to(root) for p in parts)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError before 3.13
        raise NotFound(f"no adapter at this path: {_RULE}", param="lora_path") from error
    if leads_out or source == root:
        raise NotFound(f"no adapter at this path: {_RULE}", param="lora_path")
    return source
