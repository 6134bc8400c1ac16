"""`floe chat` against servers that behave, cut, garble and try to command the terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from floe.cli.chat import visible

FACTS = {
    "route": {"how": "routed", "adapters": [{"id": "maths", "weight": 1.0}]},
    "verdict": {"action": "allow", "reason": "", "entities": []},
    "cloud": "llm",
    "cloud_asked": 3,
    "fused_tokens": 1,
    "cloud_tokens": 1,
}
DONE = "data: [DONE]\n\n"


def event(content: str | None, *, reason: str | None = None, **floe: Any) -> str:
    choice = {"delta": {"content": content}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice], 'floe': floe})}\n\n"


class Server:
    """Sends `pieces` as a stream to whoever asks; with `hold` it says no more until released."""

    def __init__(self) -> None:
        self.pieces: Sequence[str] = ()
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                outer.asked.append(json.loads(self.rfile.read(size)))
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write("".join(outer.pieces).encode())
                self.wfile.flush()
                outer.hold.wait(30)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.hold.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def chat(server: Server, *words: str, typed: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "floe", "chat", "--url", server.url, *words],
        input=typed.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "cloud: asked 3 times, 2 tokens fused]"),
        ({"cloud_asked": 1, "fused_tokens": 0}, "cloud: asked 1 time, 1 token fused]"),
        ({"cloud": None, "cloud_asked": 0, "fused_tokens": 0}, "cloud: not used]"),
    ],
)
def test_the_note_says_what_the_cloud_did(
    server: Server, changes: dict[str, Any], said: str
) -> None:
    server.pieces = [event("Hello"), event(None, reason="stop", **(FACTS | changes)), DONE]
    done = chat(server, "hi")
    assert (done.returncode, done.stderr) == (0, b"")
    note = "".join(done.stdout.decode().splitlines())
    assert note == f"Hello[allow; adapters: maths 1.00; {said}"


def test_a_server_cannot_command_the_terminal(server: Server) -> None:
    evil = "a\x1b]0;owned\x07b\x9b2Jc\u202ed\u2066e\rf\tg\nh :smile: [red]"
    server.pieces = [event(evil), event(None, reason="stop"), DONE]
    shown = chat(server, "hi").stdout.decode()
    assert not set(shown) & set("\x1b\x07\x9b\u202e\u2066\r")
    assert r"a\x1b]0;owned\x07b\x9b2Jc\u202ed\u2066e\rf" in shown
    assert "g\nh :smile: [red]" in shown


def test_an_error_message_cannot_command_the_terminal_either(server: Server) -> None:
    server.status, server.pieces = 400, [json.dumps({"error": {"message": "no\x1b[2J"}})]
    done = chat(server, "hi")
    assert done.returncode == 1
    assert done.stderr == b"floe: no\\x1b[2J\n"


def test_every_control_and_bidi_character_is_shown() -> None:
    codes = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    for code in codes:
        assert (
            visible(chr(code)) == chr(code)
            if chr(code) in "\n\t"
            else visible(chr(code))[0] == "\\"
        )
    plain = "Grüße, 日本 😀 \\ \u00a0\u200d"
    assert visible(plain) == plain


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([event("Hel")], "cut before its end"),
        ([event("Hel"), DONE], "cut before its end"),
        ([event("Hel"), event(None, reason="stop")], "cut before its end"),
        ([], "cut before its end"),
        ([event("Hel"), 'data: {"cho\n\n'], "no part of an answer"),
        (["data: 7\n\n"], "no part of an answer"),
        (['data: {"choices": [{}]}\n\n'], "no part of an answer"),
        (['data: {"choices": [{"delta": {"content": 7}}]}\n\n'], "no part of an answer"),
        (['data: {"choices": [], "floe": 1}\n\n'], "no part of an answer"),
        (['data: {"error": {"message": "the engine has stopped"}}\n\n'], "engine has stopped"),
        (["data: " + "[" * 100_000 + "\n\n"], "no part of an answer"),
        ([event(None, reason="stop", cloud_asked="?"), DONE], "floe object is malformed"),
    ],
)
def test_a_broken_stream_is_an_error_in_one_line(
    server: Server, pieces: Sequence[str], message: str
) -> None:
    server.pieces = pieces
    done = chat(server, "hi")
    assert done.returncode == 1
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert (b"Hel" in done.stdout) == any("Hel" in p for p in pieces)


def test_a_refusal_in_another_form(server: Server) -> None:
    server.status, server.pieces = 502, ["<html>"]
    done = chat(server, "hi")
    assert done.returncode == 1
    assert "status 502, and not in Floe's form" in done.stderr.decode()


def test_an_address_that_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "floe", "chat", "--url", "http://localhost:x", "hi"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"is not a URL" in done.stderr


def test_a_dialogue_remembers_its_answers(server: Server) -> None:
    server.pieces = [event("Yes"), event(None, reason="stop"), DONE]
    assert chat(server, typed="one\n\ntwo\n").returncode == 0
    said = [(m["role"], m["content"]) for m in server.asked[-1]["messages"]]
    assert said == [("user", "one"), ("assistant", "Yes"), ("user", "two")]


def test_ctrl_c_during_an_answer_stops_only_that_answer(server: Server) -> None:
    server.pieces = [event("Once upon")]
    server.hold.clear()
    # A test run started in the background ignores Ctrl-C, and so would its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = f"{heed}from floe.cli.main import main; main(['chat', '--url', '{server.url}'])"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, bufsize=0) as talk:
        assert talk.stdin and talk.stdout and talk.stderr
        talk.stdin.write(b"tell\n")
        assert _read_until(talk.stdout, b"Once upon")
        talk.send_signal(signal.SIGINT)
        assert _read_until(talk.stderr, b"this answer was stopped\n")
        server.hold.set()
        server.pieces = [event("The end"), event(None, reason="stop"), DONE]
        talk.stdin.write(b"go on\n")
        talk.stdin.close()
        assert _read_until(talk.stdout, b"The end")
        assert talk.wait(30) == 0
    said = [m["content"] for m in server.asked[-1]["messages"]]
    assert said == ["tell", "Once upon", "go on"]


def _read_until(stream: Any, mark: bytes) -> bool:
    seen = b""
    while mark not in seen:
        if not (piece := stream.read(1)):
            return False
        seen += piece
    return True
