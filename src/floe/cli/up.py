"""`floe up`: an edge and a stand-in for the cloud on one machine, with three example prompts."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, ModelOption, progress_bar, read_config, say

if TYPE_CHECKING:
    from pathlib import Path

    from floe.assemble import Edge
    from floe.core.config import Config, Secrets
    from floe.core.sections import FusionConfig

STAND_IN_BUDGET_MS, STAND_IN_FIRST_BUDGET_MS = 2_000, 30_000
EXAMPLES = {
    "private": (
        "I am Maria Keller, my card is 4111 1111 1111 1111 and my mail is maria.keller@example.org."
        " Write a short note to my bank."
    ),
    "fused": (
        "A shop buys 12 boxes with 8 pens in each box and gives away 20 pens. "
        "How many pens are left?"
    ),
    "plain": "What is the capital of France? Answer in one sentence.",
}


def up(
    check: Annotated[
        bool, typer.Option("--check", help="Run the examples once, print JSON to stdout, exit.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
    cloud_model: Annotated[
        str | None, typer.Option(help="Model of the stand-in; 'none' starts no stand-in.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
) -> None:
    """Start an edge server and, in a second process, a stand-in for the cloud.

    Fetches what is missing, runs a private, a maths and a plain prompt, then goes on serving.

    Example: floe up --check
    """
    from floe.core.config import Secrets, home

    settings = read_config(config, model=model)
    if port is not None or check:
        serve = dataclasses.replace(settings.serve, port=port or 0)
        settings = dataclasses.replace(settings, serve=serve)
    with ExitStack() as stack:
        settings, keys, cloud_name = _with_cloud(
            stack, settings, Secrets.from_environment(settings.tenants), home(), cloud_model
        )
        _prepare_ner(home())
        report = _serve(settings, keys, home(), cloud_name, check=check)
    if check:
        print(json.dumps(report))
        sys.exit(0 if report["ok"] else 1)


def _with_cloud(
    stack: ExitStack, settings: Config, keys: Secrets, folder: Path, cloud_model: str | None
) -> tuple[Config, Secrets, str | None]:
    """Settings with a cloud: the configured one, else a stand-in process, else none."""
    from floe.assemble import STAND_IN, cpu_count, model_files
    from floe.cli.stand_in import stand_in
    from floe.core.errors import PullFailed

    if settings.cloud.kind != "none":
        return settings, keys, settings.cloud.url
    name = cloud_model or STAND_IN
    if name == "none":
        say("floe: no cloud asked for; serving from the edge only")
        return settings, keys, None
    try:
        with progress_bar() as progress:
            pulled = model_files(name, home=folder, progress=progress)
    except PullFailed as error:
        say(f"floe: no stand-in for the cloud, serving from the edge only. {error.message}")
        return settings, keys, None
    # Two models share the cores: more threads than cores make each of them far slower.
    threads = settings.model.threads or max(cpu_count() // 2, 1)
    service = stack.enter_context(stand_in(name, threads=threads))
    settings = dataclasses.replace(
        settings,
        cloud=dataclasses.replace(settings.cloud, kind="floe", url=service.url),
        model=dataclasses.replace(settings.model, threads=threads),
        fusion=_with_patience(settings.fusion),
    )
    return settings, dataclasses.replace(keys, cloud_key=service.key), pulled.name


def _with_patience(fusion: FusionConfig) -> FusionConfig:
    """Budgets for a stand-in, which computes on the very cores the SLM needs."""
    return dataclasses.replace(
        fusion,
        token_budget_ms=max(fusion.token_budget_ms, STAND_IN_BUDGET_MS),
        first_token_budget_ms=max(fusion.first_token_budget_ms, STAND_IN_FIRST_BUDGET_MS),
    )


def _prepare_ner(folder: Path) -> None:
    """Fetch the NER model where its runtime is installed; the rules work without it."""
    import importlib.util

    from floe.assemble import NER
    from floe.core.errors import PullFailed
    from floe.models.pull import ensure

    if importlib.util.find_spec("onnxruntime") is None:
        return
    try:
        with progress_bar() as progress:
            ensure(NER, home=folder, progress=progress)
    except PullFailed as error:
        say(f"floe: the privacy gate works with rules only. {error.message}")


def _serve(
    settings: Config, keys: Secrets, folder: Path, cloud_name: str | None, *, check: bool
) -> dict[str, Any]:
    from floe.assemble import edge
    from floe.cli.web import listen, run_app, url_of
    from floe.serving.app import build_app
    from floe.serving.local import service_of

    sock = listen(settings.serve.host, settings.serve.port)
    with progress_bar() as progress, edge(settings, keys, home=folder, progress=progress) as parts:
        address = url_of(sock)

        def started() -> dict[str, Any]:
            report = _examples(address, keys.any_key, parts, cloud_name)
            if not check:
                _announce(address, report)
            return report

        app = build_app(service_of(parts, keys))
        report: dict[str, Any] = run_app(
            app, sock, started=started, once=check, finish=parts.close_cloud
        )
        return report


def _examples(address: str, key: str | None, parts: Edge, cloud_name: str | None) -> dict[str, Any]:
    """Ask the three prompts over HTTP and report what really happened."""
    private, fused, plain = (_ask(address, key, parts, text) for text in EXAMPLES.values())
    holds = {
        "private stayed on the device": not private["left_device"] and private["source"] == "edge",
        "the cloud took part in the maths": fused["cloud_tokens"] > 0,
        "an adapter was chosen for the maths": bool(fused["adapters"]),
        "the plain prompt was answered": plain["tokens"] > 0,
    }
    return {
        "ok": all(holds.values()),
        "edge_model": parts.engine.info.name,
        "cloud_model": cloud_name,
        "adapters": [s.manifest.name for s in parts.store.list()],
        "private": private,
        "fused": fused,
        "plain": plain,
        "failed": [what for what, held in holds.items() if not held],
    }


def _ask(address: str, key: str | None, parts: Edge, text: str) -> dict[str, Any]:
    from floe.cli.client import chat_once

    reply = chat_once(address, key, text, max_tokens=64)
    facts, usage = reply["floe"], reply["usage"]
    sent = parts.ledger.read() if parts.ledger else []
    from_cloud = facts["fused_tokens"] + facts["cloud_tokens"]
    return {
        "left_device": any(e.request_id == reply["id"] for e in sent),
        "source": "fused" if from_cloud else "edge",
        "tokens": usage["completion_tokens"],
        "cloud_tokens": from_cloud,
        "corrected_tokens": facts["cloud_tokens"],
        "adapters": [a["id"] for a in facts["route"]["adapters"]],
        "verdict": facts["verdict"]["action"],
        "reason": facts["verdict"]["reason"],
        "answer": reply["choices"][0]["message"]["content"],
    }


def _announce(address: str, report: dict[str, Any]) -> None:
    for name, prompt in EXAMPLES.items():
        facts = report[name]
        left = "left the device" if facts["left_device"] else "nothing left the device"
        adapters = ", ".join(facts["adapters"]) or "none"
        say(f"\n[{name}] {prompt}")
        say(f"  verdict {facts['verdict']} ({facts['reason']}); {left}; adapters: {adapters};")
        say(f"  {facts['cloud_tokens']} of {facts['tokens']} tokens fused with the cloud")
        say(f"  > {facts['answer'].strip()[:300]}")
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is 7 times 12?"}]}'
    say(f"\nfloe: serving on {address}/v1 (Ctrl-C stops). Try:")
    say(f"curl {address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
