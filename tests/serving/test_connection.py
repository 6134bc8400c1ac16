"""A client that leaves: the work stops, the place comes back, and it is counted once."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import httpx
import pytest
from scripted_service import WAIT_S, Caller, Script, Sent, Tracked, draw, served, service_of
from starlette.types import ASGIApp

from floe.core.errors import Busy
from floe.core.sections import ServeConfig
from floe.serving import connection
from floe.serving.app import build_app
from floe.serving.connection import Slots, deliver, while_connected
from floe.serving.errors import ClientGone

CHAT = "/v1/chat/completions"


def body(**changes: Any) -> bytes:
    ask = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]} | changes
    return json.dumps(ask).encode()


async def figures(app: ASGIApp) -> dict[str, float]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


async def test_a57_a_client_that_leaves_a_stream_stops_the_work() -> None:
    script = Script(hang_at=3)
    app = build_app(service_of(script))
    sent = await Caller(app, CHAT, leave=lambda sent: len(sent) >= 4).post(body(stream=True))
    assert script.running == 0
    assert b"[DONE]" not in b"".join(m.get("body", b"") for m in sent)
    now = await figures(app)
    assert now["floe_requests_cancelled_total"] == 1
    assert now["floe_requests_in_flight"] == 0
    assert now['floe_requests_total{route="/v1/chat/completions",status="200"}'] == 1


async def test_a57_a_client_that_leaves_before_a_whole_answer_stops_the_work() -> None:
    script = Script(hang_at=2)
    app = build_app(service_of(script))
    client = Caller(app, CHAT)
    asked = asyncio.create_task(client.post(body()))
    await asyncio.to_thread(script.hanging.acquire)
    assert (await figures(app))["floe_requests_in_flight"] == 1
    client.hang_up()
    assert await asked == []
    assert script.running == 0
    now = await figures(app)
    assert now["floe_requests_in_flight"] == 0
    assert now["floe_requests_cancelled_total"] == 1
    assert now['floe_requests_total{route="/v1/chat/completions",status="499"}'] == 1


async def test_a_server_that_stops_stops_the_work() -> None:
    script = Script(hang_at=2)
    app = build_app(service_of(script))
    asked = asyncio.create_task(Caller(app, CHAT).post(body()))
    await asyncio.to_thread(script.hanging.acquire)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert script.running == 0
    assert (await figures(app))["floe_requests_in_flight"] == 0


async def test_a58_finished_answers_are_not_counted_as_cancelled() -> None:
    script = Script()
    app = build_app(service_of(script))
    for stream in (True, False):
        for _ in range(20):
            await Caller(app, CHAT).post(body(stream=stream))
    now = await figures(app)
    assert now["floe_requests_cancelled_total"] == 0
    assert now['floe_requests_total{route="/v1/chat/completions",status="200"}'] == 40


async def test_a58_a_client_that_leaves_with_the_last_chunk_has_its_answer() -> None:
    def got_the_end(sent: Sent) -> bool:
        return any(b'finish_reason":"stop' in m.get("body", b"") for m in sent)

    app = build_app(service_of(Script()))
    await Caller(app, CHAT, leave=got_the_end).post(body(stream=True))
    now = await figures(app)
    assert now["floe_requests_cancelled_total"] == 0
    assert now["floe_requests_in_flight"] == 0


async def test_a58_a_client_that_leaves_before_the_last_chunk_is_taken_has_its_answer() -> None:
    class Stuck(Caller):
        async def take(self, message: Any) -> None:
            await super().take(message)
            if b'finish_reason":"stop' in message.get("body", b""):
                self.hang_up()
                await asyncio.Event().wait()

    app = build_app(service_of(Script()))
    await Stuck(app, CHAT).post(body(stream=True))
    now = await figures(app)
    assert now["floe_requests_cancelled_total"] == 0
    assert now["floe_requests_in_flight"] == 0


async def test_a60_a_send_that_fails_closes_the_answer_at_once() -> None:
    class Broken(Caller):
        async def take(self, message: Any) -> None:
            await super().take(message)
            if len(self.sent) == 3:
                raise OSError

    script = Script(draws=[draw(b"x")] * 50)
    app = build_app(service_of(script))
    await Broken(app, CHAT).post(body(stream=True))
    assert script.running == 0
    assert script.drawn < 5
    assert (await figures(app))["floe_requests_cancelled_total"] == 1


def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    size = 12_000_000  # more than the kernel buffers on its own
    with (
        served(build_app(service_of(Script()))) as port,
        socket.create_connection(("127.0.0.1", port), WAIT_S) as sock,
    ):
        sock.sendall(request_bytes(b" " * size, announced=size))
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


def reset(sock: socket.socket) -> None:
    """Close with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def request_bytes(data: bytes, *, announced: int) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {announced}\r\n\r\n".encode() + data


def test_a59_connections_reset_before_the_answer_begins_leave_no_place_taken() -> None:
    """200 clients: half never send their body, half send it and leave before the first byte."""
    script = Script(hang_at=1)
    app = build_app(service_of(script, config=ServeConfig(max_waiting=4)))
    tracked = Tracked(app)
    whole = body(stream=True)
    with served(tracked) as port:
        for _ in range(100):
            half = socket.create_connection(("127.0.0.1", port), WAIT_S)
            half.sendall(request_bytes(whole[:5], announced=len(whole)))
            asking = socket.create_connection(("127.0.0.1", port), WAIT_S)
            asking.sendall(request_bytes(whole, announced=len(whole)))
            assert script.hanging.acquire(timeout=WAIT_S)
            reset(half)
            reset(asking)
            assert script.cleaned.acquire(timeout=WAIT_S)
        tracked.wait_for(200)
        script.hang_at = None
        text = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=json.loads(whole)).text
        assert text.endswith("data: [DONE]\n\n")
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert script.running == 0
    assert "floe_requests_in_flight 0.0" in page
    assert "floe_requests_cancelled_total 100.0" in page


@pytest.mark.parametrize("stream", [True, False])
def test_a61_killing_a_client_in_a_long_answer_frees_its_place(stream: bool) -> None:
    script = Script(hang_at=3)
    tracked = Tracked(build_app(service_of(script)))
    data = body(stream=stream)
    with served(tracked) as port:
        sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        sock.sendall(request_bytes(data, announced=len(data)))
        assert script.hanging.acquire(timeout=WAIT_S)
        sock.close()
        tracked.wait_for(1)
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert script.running == 0
    assert "floe_requests_in_flight 0.0" in page
    assert "floe_requests_cancelled_total 1.0" in page
    status = "200" if stream else "499"
    assert f'floe_requests_total{{route="{CHAT}",status="{status}"}} 1.0' in page


async def test_a_slow_reader_holds_the_answer_back_and_gets_all_of_it() -> None:
    script = Script(draws=[draw(b"x")] * 50)
    blocked, go_on = asyncio.Event(), asyncio.Event()

    class SlowReader(Caller):
        async def take(self, message: Any) -> None:
            await super().take(message)
            if len(self.sent) == 5:
                blocked.set()
                await go_on.wait()

    client = SlowReader(build_app(service_of(script)), CHAT)
    asked = asyncio.create_task(client.post(body(stream=True)))
    await blocked.wait()
    assert script.drawn < 5
    go_on.set()
    text = b"".join(m.get("body", b"") for m in await asked)
    assert script.drawn == text.count(b'"content":"x"') == 50


async def test_more_than_max_waiting_are_told_to_come_back() -> None:
    script = Script(hang_at=1)
    app = build_app(service_of(script, config=ServeConfig(max_waiting=1)))
    first = asyncio.create_task(Caller(app, CHAT).post(body()))
    await asyncio.to_thread(script.hanging.acquire)
    sent = await Caller(app, CHAT).post(body())
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    error = json.loads(sent[1]["body"])["error"]
    assert "1 requests are already waiting" in error["message"]
    assert (error["type"], error["code"]) == ("overloaded_error", "overloaded")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    script.hang_at = None
    assert (await Caller(app, CHAT).post(body()))[0]["status"] == 200


def test_a_place_comes_back_after_an_error() -> None:
    slots = Slots(most=1)
    with pytest.raises(KeyError), slots.one():
        assert slots.taken == 1
        raise KeyError
    assert slots.taken == 0
    with slots.one(), pytest.raises(Busy, match=r"serve\.max_waiting"), slots.one():
        pass
    assert slots.taken == 0


async def no_message() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def leaves() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def test_the_clean_up_is_waited_for_and_its_error_logged_by_class(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)
            raise ValueError("text of the user")

    with pytest.raises(ClientGone):
        await while_connected(work(), leaves, request_id="r1")
    assert ended == [True]
    assert "request r1 failed: ValueError at test_connection.py:" in caplog.text
    assert "text of the user" not in caplog.text


async def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await while_connected(work(), no_message, request_id="r1")


async def test_a_client_that_takes_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stalled(message: Any) -> None:
        await no_message()

    async def broken(message: Any) -> None:
        raise OSError

    monkeypatch.setattr(connection, "STALLED_S", 0.0)
    for send in (stalled, broken):
        with pytest.raises(ClientGone):
            await deliver(send, {"type": "http.response.body", "body": b""})
