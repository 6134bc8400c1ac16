"""`floe cloud`: a logit service over any GGUF model."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from floe.cli.common import ConfigOption, progress_bar, read_config, say

STAND_IN = "qwen2.5-coder-0.5b-instruct"


def cloud(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Name, reference or path.")
    ] = STAND_IN,
    host: Annotated[str, typer.Option(help="Address; loopback by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8742,
    threads: Annotated[int, typer.Option(help="Threads of the model; 0 = all cores.")] = 0,
    config: ConfigOption = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="Stop when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Serve a model's token probabilities: prefix and draft in, top tokens per position out.

    The key that callers must send is read from FLOE_CLOUD_KEY; without it only loopback is served.

    Example: floe cloud --model qwen2.5-coder-0.5b-instruct --port 8742
    """
    from floe.assemble import chat_format, open_engine
    from floe.cli.web import listen, run_app, url_of
    from floe.core.config import Secrets, home
    from floe.core.errors import BadConfig
    from floe.core.request import Message, Request
    from floe.serving.logits_app import build_logits_app

    key = Secrets.from_environment().cloud_key
    if key is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise BadConfig(
            f"refusing to serve {host} without a key: set FLOE_CLOUD_KEY, or use --host 127.0.0.1",
            param="host",
        )
    settings = read_config(config)
    chosen = dataclasses.replace(settings.model, name=model, threads=threads)
    sock = listen(host, port)
    with progress_bar(quiet=with_parent) as progress:
        engine = open_engine(chosen, home=home(), progress=progress)
    try:
        form = chat_format(engine)

        def encode(messages: Sequence[Message], prompt: str | None) -> list[int]:
            return form.encode(Request(id="", messages=tuple(messages), prompt=prompt))

        app = build_logits_app(engine=engine, encode=encode, key=key)
        address = url_of(sock)
        if with_parent:
            threading.Thread(target=_exit_with_parent, daemon=True).start()
        say(f"floe: logit service of {engine.info.name} on {address}")
        run_app(app, sock, started=lambda: print(address, flush=True))
    finally:
        engine.close()


def _exit_with_parent() -> None:
    """Interrupt this process when whoever started it is gone."""
    while os.read(sys.stdin.fileno(), 4096):  # not through a buffer, whose lock bars the exit
        pass
    os.kill(os.getpid(), signal.SIGINT)
