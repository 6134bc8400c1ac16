"""A tap on the line to the cloud: every byte that leaves is shown, then passed on or lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from typing import Literal

from floe.testing.leak_watch import Watch, json_or_none

Fault = Literal["500", "429", "bad json", "cut", "stall", "silence"]
FAULTS: tuple[Fault, ...] = ("500", "429", "bad json", "cut", "stall", "silence")
_STALL_S = 0.3
_CASE = re.compile(rb"case-([0-9]+)\)")
_ANSWERS: dict[str, bytes] = {
    "500": b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}",
    "429": b"HTTP/1.1 429 Oh\r\ncontent-length: 2\r\nretry-after: 0\r\n\r\n{}",
    "bad json": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: {]\n",
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{",
    "stall": b"",
    "silence": b"",
}


class Tap:
    """A TCP server in a thread that shows `watch` what clients send and passes it to `port`.

    A share of the requests meets a fault instead. `questions` counts whole requests.
    """

    def __init__(self, *, watch: Watch, port: int, seed: int, fault_share: float) -> None:
        self._watch, self._port, self._fault_share = watch, port, fault_share
        self._rng = random.Random(f"tap {seed}")
        self.questions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        self.url = f"http://127.0.0.1:{self._own_port}"

    def close(self) -> None:
        """Cut all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)

    def _serve(self, started: threading.Event) -> None:
        async def serve() -> None:
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self._own_port = int(server.sockets[0].getsockname()[1])
            started.set()
            await self._stop.wait()
            server.close()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(5):  # let the loop tell the transports that they are closed
                await asyncio.sleep(0)

        self._loop.run_until_complete(serve())
        self._loop.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve_one(reader, writer))
        self._tasks.add(task)  # or nobody holds it once the client has gone
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._request(reader)) is not None:
                self.questions += 1
                if self._rng.random() < self._fault_share:
                    if not await self._fail(writer):
                        break
                else:
                    await self._pass_on(request, writer)
        except OSError:
            pass  # either side may leave at any moment: that is what is tried here
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bytes | None:
        """One whole request, shown; None when the client has gone."""
        head = b""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            body = await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            self._watch.see("sent", head + error.partial)
            return None
        found = _CASE.search(body)
        about = int(found[1]) if found else None
        self._watch.see("sent", head + body, about=about)
        self._watch.see_json("sent", json_or_none(body), about=about)
        return head + body

    async def _fail(self, writer: asyncio.StreamWriter) -> bool:
        """Answer with a fault; whether the connection goes on."""
        fault = self._rng.choice(FAULTS)
        if fault in ("stall", "silence"):
            await asyncio.sleep(_STALL_S)
        writer.write(_ANSWERS[fault])
        await writer.drain()
        return fault in ("500", "429", "bad json")

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        """The upstream's answer, on a connection of its own that it closes behind it."""
        head, _, body = request.partition(b"\r\n\r\n")
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        back.write(head + b"\r\nconnection: close\r\n\r\n" + body)
        await back.drain()
        try:
            while data := await there.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            back.close()
            with contextlib.suppress(OSError):
                await back.wait_closed()
