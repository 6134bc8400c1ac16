"""The one door to httpx: bounded requests to one cloud endpoint, every failure a CloudFailed."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx

from floe.core.errors import BadConfig, CloudFailed

HttpClient = httpx.AsyncClient
"""For tests that bring their own transport."""
OnSend = Callable[[str, bytes, str], None]
"""Called in a thread with (destination, payload, request id) before each send; raising stops it."""
_LINE_LIMIT = 1_000_000


def record_nothing(_destination: str, _payload: bytes, _request_id: str) -> None:
    """An `OnSend` for clients whose sends need no ledger, such as a bench."""


class Endpoint:
    """One base URL, with its key and its time-outs.

    Proxies and certificates from the environment are ignored: text goes to the configured place
    and to no other. Redirects are not followed, for the same reason. Connections are kept alive.

    Raises:
        BadConfig: not http(s), plain http to another machine, or a key that no header can hold.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None,
        connect_timeout_ms: float,
        read_timeout_s: float,
        on_send: OnSend,
        client: HttpClient | None = None,
    ) -> None:
        self._url = _checked(url)
        self.destination = self._url.netloc.decode("ascii")
        self._on_send = on_send
        if key and not (key.isascii() and key.isprintable()):
            raise BadConfig("FLOE_CLOUD_KEY holds characters that no key has", param="cloud.key")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout = httpx.Timeout(read_timeout_s, connect=connect_timeout_ms / 1000)
        self._client = client or HttpClient(trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        """Close the kept connections."""
        await self._client.aclose()

    async def post(self, path: str, payload: bytes, *, request_id: str, max_bytes: int) -> bytes:
        """The body of the answer to a JSON `payload`.

        Raises:
            CloudFailed: not recorded, not reachable, too slow, not 200, or above `max_bytes`.
        """
        body = bytearray()
        chunks = self.stream(path, payload, request_id=request_id)
        try:
            async for chunk in chunks:
                body += chunk
                if len(body) > max_bytes:
                    raise CloudFailed(f"the cloud's answer is above {max_bytes} bytes")
        finally:
            await chunks.aclose()
        return bytes(body)

    async def lines(
        self, path: str, payload: bytes, *, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer, without their ends. Raises as `post` does."""
        rest = b""
        chunks = self.stream(path, payload, request_id=request_id)
        try:
            async for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_LIMIT:
                    raise CloudFailed(f"the cloud sent a line above {_LINE_LIMIT} bytes")
                for line in whole:
                    yield line.rstrip(b"\r")
        finally:
            await chunks.aclose()
        if rest:
            yield rest

    async def stream(
        self, path: str, payload: bytes, *, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of the answer as they come. Raises as `post` does, at any piece."""
        await self._record(payload, request_id)
        headers = {
            **self._headers,
            "content-type": "application/json",
            "x-request-id": request_id,
        }
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        try:
            async with self._client.stream(
                "POST", url, content=payload, headers=headers, timeout=self._timeout
            ) as response:
                if response.status_code != 200:
                    raise CloudFailed(_refusal(response.status_code))
                async for chunk in response.aiter_bytes():
                    yield chunk
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            kind = type(error).__name__  # its text could hold parts of the request
            raise CloudFailed(f"no answer from the cloud at {self.destination}: {kind}") from error

    async def _record(self, payload: bytes, request_id: str) -> None:
        try:  # in a thread: a ledger waits for its disk, and other streams must not
            await asyncio.to_thread(self._on_send, self.destination, payload, request_id)
        except Exception as error:
            raise CloudFailed(
                f"nothing was sent: the send could not be recorded ({type(error).__name__})"
            ) from error


def _checked(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise BadConfig("cloud.url is not a URL", param="cloud.url") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise BadConfig("cloud.url must begin with https:// or http://", param="cloud.url")
    if url.userinfo or url.query or url.fragment:
        raise BadConfig(
            "cloud.url must be an address only; give the key as FLOE_CLOUD_KEY", param="cloud.url"
        )
    if url.scheme == "http" and not _is_loopback(url.host):
        raise BadConfig(
            "cloud.url would send text in the clear to another machine: use https://, or an ssh "
            "tunnel and http://127.0.0.1",
            param="cloud.url",
        )
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(status: int) -> str:
    hints: dict[int, Any] = {
        401: "check FLOE_CLOUD_KEY",
        403: "check FLOE_CLOUD_KEY",
        404: "check cloud.url and cloud.kind",
        429: "it is asked too often",
    }
    hint = f"; {hints[status]}" if status in hints else ""
    return f"the cloud answered with status {status}{hint}"
