"""`floe doctor`: machine, models, sensors, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from floe.cli.common import ConfigOption, JsonOption, read_config

State = Literal["ok", "missing", "optional"]
EXTRAS = {
    "serve": ("xllamacpp", "starlette", "uvicorn", "prometheus_client", "phonenumbers"),
    "ner": ("onnxruntime",),
    "hub": ("huggingface_hub",),
    "convert": ("gguf",),
    "train": ("torch", "transformers", "peft"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was looked at. `todo` says how to get what is missing."""

    about: str
    state: State
    found: str
    todo: str = ""


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print what is here and what is missing; exit 1 if serving cannot work.

    Example: floe doctor
    """
    lines = [*_machine(), *_packages(), _library(), *_models(config), *_sensors()]
    if as_json:
        print(json.dumps([asdict(line) for line in lines]))
    else:
        for line in lines:
            mark = {"ok": "ok", "missing": "MISSING", "optional": "-"}[line.state]
            hint = f"  -> {line.todo}" if line.todo else ""
            print(f"{mark:<8} {line.about:<28} {line.found}{hint}")
    if any(line.state == "missing" for line in lines):
        raise typer.Exit(1)


def _machine() -> list[Line]:
    from floe.assemble import cpu_count

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    python_ok = sys.version_info >= (3, 11)
    return [
        Line(about="machine", state="ok", found=f"{platform.machine()}, {platform.system()}"),
        Line(
            about="python",
            state="ok" if python_ok else "missing",
            found=platform.python_version(),
            todo="" if python_ok else "install Python 3.11 or newer",
        ),
        Line(about="cores", state="ok", found=str(cpu_count())),
        Line(about="memory", state="ok", found=f"{memory / 2**30:.1f} GiB"),
        _home(),
    ]


def _home() -> Line:
    """FLOE_HOME, or what of it exists, tried by a temporary folder: root may write by mode bits."""
    from floe.core.config import home

    folder = home()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    try:
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        absent = "" if there == folder else "missing, and "
        found = f"{folder} is {absent}not writable: {error.strerror}"
        todo = "set FLOE_HOME to a folder to write in"
        return Line(about="FLOE_HOME", state="missing", found=found, todo=todo)
    return Line(about="FLOE_HOME", state="ok", found=f"{folder}, {free / 2**30:.1f} GiB free")


def _packages() -> list[Line]:
    lines = []
    for extra, names in EXTRAS.items():
        absent = [n for n in names if importlib.util.find_spec(n) is None]
        needed: State = "missing" if extra == "serve" else "optional"
        lines.append(
            Line(
                about=f"extra [{extra}]",
                state=needed if absent else "ok",
                found=f"not installed: {', '.join(absent)}" if absent else ", ".join(names),
                todo=f"pip install 'floe[{extra}]'" if absent else "",
            )
        )
    return lines


def _library() -> Line:
    from floe.core.errors import Missing
    from floe.engine.llama_library import library

    try:
        found = library()
    except Missing as error:
        return Line(about="llama.cpp", state="missing", found=error.message)
    return Line(about="llama.cpp", state="ok", found=f"{found.layout.build}, {found.path}")


def _models(config: Path | None) -> list[Line]:
    from floe.assemble import EMBEDDING, NER, STAND_IN
    from floe.core.config import home
    from floe.models.pull import available

    present = {m.name for m in available(home())}
    slm = read_config(config).model.name
    roles = {slm: "SLM", EMBEDDING: "embedding", NER: "NER", STAND_IN: "stand-in for the cloud"}
    lines = []
    for name, role in roles.items():
        here = name in present or Path(name).is_file()
        lines.append(
            Line(
                about=f"model ({role})",
                state="ok" if here else "optional",
                found=name if here else f"{name} is not on disk",
                todo="" if here else f"floe pull {name}",
            )
        )
    return lines


def _sensors() -> list[Line]:
    """What can measure energy and set clocks; more of it: floe power doctor."""
    from floe.power.knobs.probe import all_knobs
    from floe.power.meters.probe import sensors

    lines = [
        Line(
            about=f"sensor {found.name}",
            state="ok" if found.usable else "optional",
            found=f"{found.place}, {found.kind}" if found.usable else found.reason,
            todo=found.todo,
        )
        for found in sensors()
    ]
    for name, knobs in all_knobs().items():
        clocks = ", ".join(domain.name for domain in knobs.domains)
        lines.append(
            Line(
                about=f"clocks {name}",
                state="optional" if knobs.advice_only else "ok",
                found=f"{clocks}: {knobs.advice_only}".strip(": ") if knobs.advice_only else clocks,
            )
        )
    return lines
