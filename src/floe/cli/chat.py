"""`floe chat`: talk to a running server; colours show where each token came from."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

COLOURS = {"edge": "default", "fused": "green", "cloud": "yellow"}


def chat(
    message: Annotated[str | None, typer.Argument(help="One question; none = a dialogue.")] = None,
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8741",
    model: Annotated[str, typer.Option("--model", "-m", help="auto, base or adapter.")] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    local: Annotated[bool, typer.Option("--local", help="Keep everything on the device.")] = False,
) -> None:
    """Chat with a Floe server. Plain = edge, green = fused, yellow = corrected by the cloud.

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
        answer = _show(url, {**settings, "messages": history})
        history.append({"role": "assistant", "content": answer})


def _questions() -> Any:
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if text.strip():
            yield text


def _show(url: str, body: dict[str, Any]) -> str:
    from rich.console import Console

    from floe.cli.client import stream_chat

    console, answer = Console(highlight=False, soft_wrap=True), []
    facts: dict[str, Any] = {}
    for chunk in stream_chat(url, os.environ.get("FLOE_API_KEY"), body):
        floe = chunk.get("floe", {})
        for choice in chunk.get("choices", ()):
            if text := choice["delta"].get("content"):
                answer.append(text)
                style = COLOURS.get(floe.get("origin", "edge"), "default")
                console.print(text, end="", style=style, markup=False)
        facts = floe if "route" in floe else facts
    console.print()
    if facts:
        names = ", ".join(f"{a['id']} {a['weight']:.2f}" for a in facts["route"]["adapters"])
        note = f"[{facts['verdict']['action']}; adapters: {names or 'none'}; "
        note += f"cloud: {facts['cloud'] or 'not used'}]"
        console.print(note, style="dim", markup=False)
    return "".join(answer)
