"""A command under held clocks, and what it cost."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from floe.cli.power_text import joules, window_figures
from floe.core.errors import BadRequest, NotAllowed, NotFound
from floe.power.base import Knobs
from floe.power.hold import held
from floe.power.meters.probe import open_meter

_END_S = 10.0


def writable(output: Path) -> Path:
    """`output`, known to be writable before the work begins rather than after it.

    Raises:
        BadRequest: it cannot be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output.parent):
            pass
        if output.is_dir():
            raise IsADirectoryError(0, "it is a folder")
    except OSError as error:
        raise BadRequest(f"{output} cannot be written: {error.strerror}", param="output") from None
    return output


def clocks_for(knobs: Knobs, given: Sequence[str], controller: str) -> dict[str, float]:
    """MHz by domain of "gpu=612" and the like, or of a controller that always gives the same.

    Raises:
        BadRequest: no such form or controller.
    """
    if controller:
        if controller not in ("performance", "powersave"):
            raise BadRequest(
                "a command is no request: --controller must be performance or powersave; others "
                "choose by what a request needs",
                param="controller",
            )
        at = -1 if controller == "performance" else 0
        return {d.name: d.steps_mhz[at] for d in knobs.domains}
    out: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            out[name.strip()] = float(value)
        except ValueError:
            raise BadRequest(f"--clock must be NAME=MHZ, such as gpu=612, not {text!r}") from None
    return out


def run_held(
    command: Sequence[str], *, knobs: Knobs, clocks: Mapping[str, float], meter_name: str,
    folder: Path, root: Path,
) -> dict[str, Any]:  # fmt: skip
    """Run it to its end; the command's own input and output are those of this process.

    Raises:
        NotAllowed: clocks are wanted and cannot be set. NotFound: no such command.
    """
    if clocks and knobs.advice_only:
        raise NotAllowed(f"clocks cannot be held: {knobs.advice_only}")
    meter = open_meter(meter_name, root=root)
    try:
        with held(knobs, folder=folder) if clocks else nullcontext(knobs) as now:
            if clocks:
                now.apply(clocks)
            mark = meter.begin()
            code = _run(command)
            window = meter.end(mark)
    finally:
        meter.close()
    return {
        "command": list(command),
        "exit_code": code,
        "clocks_mhz": dict(clocks),
        "meter": meter.name,
        **window_figures(window),
    }


def cost_line(found: Mapping[str, Any]) -> str:
    """What it cost, for people."""
    clocks = ", ".join(f"{n} {mhz:g} MHz" for n, mhz in found["clocks_mhz"].items())
    took = f"{found['duration_s']:.2f} s; clocks {clocks or 'as they were'}"
    return f"floe power: energy {joules(found)}; {took}"


def _run(command: Sequence[str]) -> int:
    """The exit code; the command ends with this process."""
    try:
        process = subprocess.Popen(list(command))
    except OSError as error:
        raise NotFound(f"cannot run {command[0]}: {error.strerror}", param="command") from error
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    return code if code >= 0 else 128 - code
