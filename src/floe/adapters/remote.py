"""The one door to fsspec (extra `remote`): files of a folder, S3, HTTP or whatever it speaks.

Nothing that comes through here is trusted: sizes are bounded here, digests checked by the caller.
"""

from __future__ import annotations

import time
from typing import Any, BinaryIO

from floe.core.errors import BadAdapter, BadConfig, Missing, NotFound

_CHUNK_BYTES = 1 << 20


class Remote:
    """Files below one URL, for reading. `deadline_s` bounds each file."""

    def __init__(self, url: str, *, deadline_s: float = 300.0) -> None:
        """Opens no connection yet.

        Raises:
            Missing: fsspec, or what it needs for this kind of URL, is not installed.
            BadConfig: a URL that it cannot read.
        """
        self.url, self._deadline_s = url.rstrip("/"), deadline_s
        try:
            import fsspec
        except ImportError as error:
            raise Missing(_install("fsspec is not installed")) from error
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            raise Missing(_install(f"{error} (for adapters.remote)")) from error
        except ValueError as error:
            raise BadConfig(f"adapters.remote: {error}", param="adapters.remote") from error

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """A whole file. Raises as `copy`."""
        parts: list[bytes] = []
        self._stream(name, parts.append, max_bytes=max_bytes)
        return b"".join(parts)

    def copy(self, name: str, out: BinaryIO, *, max_bytes: int) -> None:
        """Write a file to `out`.

        Raises:
            NotFound: it is not there.
            BadAdapter: the remote cannot be reached, is too slow, or the file is too large.
        """
        self._stream(name, out.write, max_bytes=max_bytes)

    def _stream(self, name: str, write: Any, *, max_bytes: int) -> None:
        began_s, total = time.monotonic(), 0
        try:
            with self._fs.open(f"{self._root}/{name}", "rb") as file:
                while chunk := file.read(min(_CHUNK_BYTES, max_bytes + 1 - total)):
                    total += len(chunk)
                    if total > max_bytes:
                        raise BadAdapter(f"{self.url}/{name} is larger than {max_bytes} bytes")
                    if time.monotonic() - began_s >= self._deadline_s:
                        raise BadAdapter(f"{self.url}/{name} took over {self._deadline_s:.0f} s")
                    write(chunk)
        except BadAdapter:
            raise
        except Exception as error:  # every file system has errors of its own
            cause = error.__cause__ or error  # a web server that is away is "not found", too
            if isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404:
                raise NotFound(f"there is no {self.url}/{name}") from error
            kind = type(cause).__name__
            raise BadAdapter(f"cannot read {self.url}/{name}: {kind}. Try again") from error


def _install(what: str) -> str:
    return f"{what}. Install it with: pip install 'floe[remote]'"
