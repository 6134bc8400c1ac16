"""`floe chat`: talk to a running server; colours show where each token came from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from floe.cli.common import say

COLOURS = {"edge": "default", "fused": "green", "cloud": "yellow"}
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def chat(
    message: Annotated[str | None, typer.Argument(help="One question; none = a dialogue.")] = None,
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8741",
    model: Annotated[str, typer.Option("--model", "-m", help="auto, base or adapter.")] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    local: Annotated[bool, typer.Option("--local", help="Keep everything on the device.")] = False,
) -> None:
    """Chat with a Floe server. Plain = edge, green = fused, yellow = corrected by the cloud.

    In a dialogue, Ctrl-C during an answer stops that answer; at the prompt it ends the dialogue.

    Example: floe chat "How many legs do seven spiders have?"
    """
    settings: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "floe": {"cloud": not local},
    }
    history: list[dict[str, str]] = []
    for text in [message] if message is not None else _questions():
        history.append({"role": "user", "content": text})
        parts: list[str] = []
        try:
            _show(url, {**settings, "messages": history}, parts)
        except KeyboardInterrupt:
            if message is not None:
                raise
            say("\nfloe: this answer was stopped")
        if parts:
            history.append({"role": "assistant", "content": "".join(parts)})
        else:
            history.pop()


def visible(text: str) -> str:
    """`text` with the controls that would command a terminal as escapes; \\n and \\t stay."""
    return _COMMANDS.sub(lambda found: repr(found[0])[1:-1], text)


def _questions() -> Iterator[str]:
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if text.strip():
            yield text


def _show(url: str, body: dict[str, Any], answer: list[str]) -> None:
    """Print an answer as it comes, and add its pieces to `answer`.

    Raises:
        NotFound, FloeError: as `stream_chat` says; what came until then is on the screen.
    """
    from rich.console import Console

    from floe.cli.client import stream_chat

    console = Console(highlight=False, soft_wrap=True)
    facts: dict[str, Any] = {}
    try:
        for chunk in stream_chat(url, os.environ.get("FLOE_API_KEY"), body):
            floe = chunk.get("floe", {})
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    answer.append(text)
                    style = COLOURS.get(str(floe.get("origin")), "default")
                    console.print(visible(text), end="", style=style, markup=False, emoji=False)
            facts = floe if "cloud_asked" in floe else facts
    finally:
        if answer:
            console.print()
    if facts:
        console.print(f"[{visible(_note(facts))}]", style="dim", markup=False, emoji=False)


def _note(facts: dict[str, Any]) -> str:
    """Verdict, adapters and what the cloud did, from the `floe` object that ends an answer.

    Raises:
        FloeError: the object has another form.
    """
    from floe.core.errors import FloeError

    try:
        names = ", ".join(f"{a['id']} {a['weight']:.2f}" for a in facts["route"]["adapters"])
        asked, fused = int(facts["cloud_asked"]), facts["fused_tokens"] + facts["cloud_tokens"]
        times, tokens = "time" + "s" * (asked != 1), "token" + "s" * (fused != 1)
        cloud = f"asked {asked} {times}, {fused} {tokens} fused" if asked else "not used"
        return f"{facts['verdict']['action']}; adapters: {names or 'none'}; cloud: {cloud}"
    except (KeyError, TypeError, ValueError) as error:
        raise FloeError("the answer's floe object is malformed: is this a Floe server?") from error
