"""A server in memory for the https door: ranges, cuts, redirects, and a list of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx


class CutStream(httpx.SyncByteStream):
    """Sends `body` and then breaks, as a lost connection does."""

    def __init__(self, body: bytes, *, cut: bool, then: Callable[[], None] | None = None) -> None:
        self._body, self._cut, self._then = body, cut, then

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), 1 << 16):
            yield self._body[start : start + (1 << 16)]
        if self._then:
            self._then()
        if self._cut:
            raise httpx.ReadError("connection lost")


@dataclass(kw_only=True)
class FileServer(httpx.BaseTransport):
    """Serves one file; the n-th answer stops after `cuts[n]` bytes."""

    body: bytes
    cuts: list[int] = field(default_factory=list)
    etag: str | None = '"v1"'
    ranges: bool = True
    asked: list[httpx.Request] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        start = 0
        wanted = request.headers.get("Range")
        same = request.headers.get("If-Range", self.etag) == self.etag
        if wanted and self.ranges and same:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        headers = {"ETag": self.etag} if self.etag else {}
        if start and start >= len(self.body):
            return httpx.Response(416, headers={"Content-Range": f"bytes */{len(self.body)}"})
        rest = self.body[start:]
        headers["Content-Length"] = str(len(rest))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
        cut = self.cuts.pop(0) if self.cuts else None
        stream = CutStream(rest if cut is None else rest[:cut], cut=cut is not None)
        return httpx.Response(206 if start else 200, headers=headers, stream=stream)

    @property
    def starts(self) -> list[str | None]:
        """The Range headers, in order."""
        return [request.headers.get("Range") for request in self.asked]


class Refuse(httpx.BaseTransport):
    """No request is expected."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"asked the net for {request.url}")
