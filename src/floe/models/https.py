"""Files over https: resumed with Range, short connect time-out, never plain http."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import httpx

from floe.models.part import Part, require_space
from floe.models.sources import SourceFailed

CONNECT_S = 3.0
_READ_S = 30.0
_TRIES = 5
_MAX_BYTES = 200_000_000_000


class _Cut(Exception):
    """The connection ended early; what came is on disk."""


def fetch_https(
    url: str,
    part: Part,
    *,
    size_bytes: int | None,
    report: Callable[[int], None],
    headers: Mapping[str, str] | None = None,
    transport: httpx.BaseTransport | None = None,
) -> None:
    """Bring `part` to the whole file behind `url`, asking only for the bytes that lack.

    A connection that ends early is taken up again while each try brings something. Keys in
    `headers` go to the first host only (httpx drops them when redirected elsewhere).

    Raises:
        SourceFailed: no connection, an error status, a redirect to http, or too many bytes.
        PullFailed: not enough disk space.
    """
    with open_client(transport) as client:
        for _ in range(_TRIES):
            before = part.size_bytes
            try:
                _attempt(client, url, part, size_bytes=size_bytes, report=report, headers=headers)
                return
            except _Cut as cut:
                reason = str(cut)
                if part.size_bytes <= before:
                    break
        raise SourceFailed(f"{reason}; {part.size_bytes} bytes are kept, pull again to go on")


def open_client(transport: httpx.BaseTransport | None, *, redirects: bool = True) -> httpx.Client:
    """A client with short time-outs that honours the user's proxies and refuses http."""
    return httpx.Client(
        transport=transport,
        follow_redirects=redirects,
        timeout=httpx.Timeout(_READ_S, connect=CONNECT_S),
        event_hooks={"request": [_refuse_http]},
    )


def _refuse_http(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise SourceFailed("redirected to an address without https, which is refused")


def _attempt(
    client: httpx.Client,
    url: str,
    part: Part,
    *,
    size_bytes: int | None,
    report: Callable[[int], None],
    headers: Mapping[str, str] | None,
) -> None:
    have = part.size_bytes
    if size_bytes is not None and have == size_bytes:
        return  # killed between the last byte and the check
    asked = {"Accept-Encoding": "identity", **(headers or {})}
    if have:
        asked["Range"] = f"bytes={have}-"
        if part.validator:
            asked["If-Range"] = part.validator
    try:
        with client.stream("GET", url, headers=asked) as response:
            beyond = response.status_code == 416 and have > 0
            if not beyond:
                _receive(response, part, have=have, size_bytes=size_bytes, report=report)
            elif response.headers.get("Content-Range") == f"bytes */{have}":
                return  # killed between the last byte and the check
    except httpx.TransportError as error:
        raise _Cut(f"connection failed ({type(error).__name__}: {error})") from error
    except httpx.HTTPError as error:
        raise SourceFailed(f"{type(error).__name__}: {error}") from error
    except httpx.InvalidURL as error:
        raise SourceFailed(f"not a usable address: {error}") from error
    if beyond:  # the server's file is shorter than what is here: from the start
        part.discard()
        _attempt(client, url, part, size_bytes=size_bytes, report=report, headers=headers)


def _receive(
    response: httpx.Response,
    part: Part,
    *,
    have: int,
    size_bytes: int | None,
    report: Callable[[int], None],
) -> None:
    start = _start(response, have)
    length = int(response.headers.get("Content-Length") or 0)
    limit = _MAX_BYTES if size_bytes is None else size_bytes
    if start + length > limit:
        raise SourceFailed(f"the server's file is larger than the {limit} bytes expected")
    require_space(part.path.parent, length)
    part.validator = _validator(response)
    part.save()
    done = start
    with part.path.open("r+b" if start else "wb") as file:
        file.seek(start)
        for chunk in response.iter_raw():
            done += len(chunk)
            if done > limit:
                raise SourceFailed(f"the server sent more than the {limit} bytes expected")
            file.write(chunk)
            report(done)
    if length and done < start + length:
        raise _Cut("the connection ended early")


def _start(response: httpx.Response, have: int) -> int:
    """Where the body begins in the file: `have` when the server resumed, else 0."""
    if response.status_code == 206:
        found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            raise SourceFailed("the server answered with another range than the one asked for")
        return have
    if response.status_code != 200:
        raise SourceFailed(f"the server answered {response.status_code} {response.reason_phrase}")
    return 0


def _validator(response: httpx.Response) -> str | None:
    tag: str = response.headers.get("ETag", "")
    changed: str | None = response.headers.get("Last-Modified")
    # If-Range takes strong validators only.
    return tag if tag and not tag.startswith("W/") else changed
