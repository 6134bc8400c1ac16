"""The door to httpx: bounded requests to one cloud endpoint, every failure a CloudFailed."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpcore
import httpx

from floe.cloud.breaker import Breaker, Pass
from floe.cloud.counters import CloudCounters, Tally
from floe.cloud.hedge import HedgedBackend, HedgedTransport
from floe.cloud.retry import Retry, Trouble, hold_s_of, is_passing
from floe.core.errors import BadConfig, CloudFailed, NotSent

HttpClient = httpx.AsyncClient
"""For tests that bring their own transport."""
OnSend = Callable[[str, bytes, str], None]
"""Called in a thread with (destination, payload, request id) before each send; raising stops it."""
T = TypeVar("T")
_LINE_LIMIT = 1_000_000
_HEDGE_AFTER_S = 0.15
_log = logging.getLogger(__name__)


def record_nothing(_destination: str, _payload: bytes, _request_id: str) -> None:
    """An `OnSend` for clients whose sends need no ledger, such as a bench."""


class Incoming:
    """An answer with status 200 that comes in."""

    def __init__(self, response: httpx.Response, on_piece: Callable[[bytes], None]) -> None:
        self._response, self._on_piece = response, on_piece

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The pieces of the body as they come."""
        async for piece in self._response.aiter_bytes():
            self._on_piece(piece)
            yield piece

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises CloudFailed above `max_bytes`."""
        body = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > max_bytes:
                    raise CloudFailed(f"the cloud's answer is above {max_bytes} bytes")
        return bytes(body)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of the body without their ends. Raises CloudFailed for an endless one."""
        rest = b""
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                if len(rest) > _LINE_LIMIT:
                    raise CloudFailed(f"the cloud sent a line above {_LINE_LIMIT} bytes")
                for line in whole:
                    yield line.rstrip(b"\r")
        if rest:
            yield rest


class Endpoint:
    """One base URL, with its key, its time-outs, one breaker and one tally for all requests.

    Proxies and certificates from the environment are ignored: text goes to the configured place
    and to no other. Redirects are not followed, for the same reason. Connections are kept alive;
    a slow connection is attempted a second time beside the first.

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
        breaker: Breaker | None = None,
        retry: Retry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._url = _checked(url)
        self.destination = self._url.netloc.decode("ascii")
        self._on_send = on_send
        if key and not (key.isascii() and key.isprintable()):
            raise BadConfig("FLOE_CLOUD_KEY holds characters that no key has", param="cloud.key")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._read_timeout_s = read_timeout_s
        self._timeout = httpx.Timeout(read_timeout_s, connect=connect_timeout_ms / 1000)
        self._rng = rng or random.Random()
        self._breaker = breaker or Breaker(clock=_now_s, rng=self._rng)
        self._retry = retry or Retry()
        self._network = HedgedBackend(httpcore.AnyIOBackend(), after_s=_HEDGE_AFTER_S)
        self._client = client or HttpClient(
            transport=HedgedTransport(self._network), trust_env=False, follow_redirects=False
        )
        self.tally = Tally()

    def counters(self) -> CloudCounters:
        """What was counted so far."""
        return self.tally.snapshot(breaker=self._breaker.state, hedged=self._network.hedged)

    async def close(self) -> None:
        """Close the kept connections."""
        await self._client.aclose()

    async def post(
        self,
        path: str,
        payload: bytes,
        *,
        request_id: str,
        max_bytes: int,
        within_ms: float,
        parse: Callable[[bytes], T],
    ) -> T:
        """What `parse` makes of the answer to a JSON `payload`; tried again within `within_ms`.

        Raises:
            CloudFailed: left alone, not recorded, not reachable, too slow as a whole, not 200,
                above `max_bytes`, or what `parse` raised.
        """

        async def once() -> T:
            async with self.exchange(
                path, payload, request_id=request_id, within_ms=within_ms
            ) as incoming:
                async with self._in_time():
                    body = await incoming.body(max_bytes)
                return parse(body)

        return await self.patiently(once, within_ms=within_ms)

    async def patiently(
        self,
        once: Callable[[], Awaitable[T]],
        *,
        within_ms: float,
        is_fresh: Callable[[], bool] = lambda: True,
    ) -> T:
        """What `once` returns. A passing trouble is tried again, with full jitter.

        No try begins later than `within_ms` after the call, nor after `is_fresh` is False. Counts
        the question. Raises what the last try raised.
        """
        started_s, n = _now_s(), 0
        self.tally.asked += 1
        try:
            while True:
                try:
                    found = await once()
                except Trouble as trouble:
                    delay_ms = self._retry.delay_ms(n, trouble, self._rng)
                    waited_ms = (_now_s() - started_s) * 1000
                    may = trouble.is_passing and n < self._retry.most and is_fresh()
                    if not may or waited_ms + delay_ms >= within_ms:
                        raise
                    n += 1
                    await asyncio.sleep(delay_ms / 1000)
                    self.tally.retried += 1
                except NotSent as error:
                    if n == 0:
                        raise
                    raise CloudFailed(error.message) from error  # an earlier try did leave
                else:
                    self.tally.ended(ok=True)
                    return found
        except CloudFailed:
            self.tally.ended(ok=False)
            raise
        except BaseException:
            self.tally.given_up += 1
            raise

    @asynccontextmanager
    async def exchange(
        self,
        path: str,
        payload: bytes,
        *,
        request_id: str,
        within_ms: float,
        is_stream: bool = False,
    ) -> AsyncIterator[Incoming]:
        """One try: an answer that comes in. A CloudFailed raised in the block counts against it.

        An answer that was awaited for `within_ms` in vain and is then given up counts too; one
        that streams may be left at any time once it has begun.

        Raises:
            CloudFailed: as `post` says, also while the block reads on.
        """
        leave = self._enter()
        try:
            await self._record(payload, request_id)
        except BaseException:
            leave.released()
            raise
        sent_s, began = _now_s(), False
        self.tally.bytes_up += len(payload)

        def on_piece(piece: bytes) -> None:
            nonlocal began
            self.tally.bytes_down += len(piece)
            if not began:
                began = True
                self.tally.round_trip((_now_s() - sent_s) * 1000)
                if is_stream:
                    leave.began()

        try:
            response = await self._send(path, payload, request_id)
            try:
                self._check(response)
                yield Incoming(response, on_piece)
            finally:
                await response.aclose()
        except CloudFailed as error:
            leave.failed(getattr(error, "hold_s", 0.0))
            raise
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            leave.failed()
            kind = type(error).__name__  # its text could hold parts of the request
            raise Trouble(
                f"no answer from the cloud at {self.destination}: {kind}",
                is_passing=not isinstance(error, httpx.TimeoutException),
            ) from error
        except BaseException:  # given up by the asker, or a bug of ours
            is_late = (_now_s() - sent_s) * 1000 >= within_ms
            (leave.failed if is_late and not (began and is_stream) else leave.released)()
            raise
        else:
            leave.succeeded()

    def _enter(self) -> Pass:
        try:
            return self._breaker.enter()
        except CloudFailed as error:
            self.tally.turned_away += 1
            raise NotSent(
                f"no answer from the cloud at {self.destination}: {error.message}"
            ) from None

    async def _send(self, path: str, payload: bytes, request_id: str) -> httpx.Response:
        headers = {
            **self._headers,
            "content-type": "application/json",
            "x-request-id": request_id,
        }
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        request = self._client.build_request(
            "POST", url, content=payload, headers=headers, timeout=self._timeout
        )
        async with self._in_time():
            return await self._client.send(request, stream=True)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raises CloudFailed when the block takes longer than an answer may: not one byte a day."""
        try:
            async with asyncio.timeout(self._read_timeout_s):
                yield
        except TimeoutError:
            raise CloudFailed(
                f"no answer from the cloud at {self.destination}: not whole after "
                f"{self._read_timeout_s:g} s"
            ) from None

    def _check(self, response: httpx.Response) -> None:
        """Raise Trouble unless the status is 200; a refused key ends all asking."""
        status = response.status_code
        if status == 200:
            return
        if status in (401, 403) and self._breaker.lock():
            _log.error(
                "the cloud at %s refuses the key (status %d): it is not asked again until "
                "restart; set FLOE_CLOUD_KEY",
                self.destination,
                status,
            )
        hold_s = 0.0
        if status in (429, 503):
            hold_s = hold_s_of(response.headers.get("retry-after"), datetime.now(UTC))
        raise Trouble(_refusal(status), is_passing=is_passing(status), hold_s=hold_s)

    async def _record(self, payload: bytes, request_id: str) -> None:
        if self._on_send is record_nothing:
            return
        try:  # in a thread: a ledger waits for its disk, and other streams must not
            await asyncio.to_thread(self._on_send, self.destination, payload, request_id)
        except Exception as error:
            raise NotSent(
                f"nothing was sent: the send could not be recorded ({type(error).__name__})"
            ) from error


def _now_s() -> float:
    return asyncio.get_running_loop().time()


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
