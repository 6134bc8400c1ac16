"""A Jetson's power mode, through NVIDIA's own tool: one domain, whose steps are mode ids."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from floe.core.errors import BadRequest, KnobFailed, NotAllowed
from floe.power.base import Clocks, Domain, Saved

_TIMEOUT_S = 20
_PLACE = "nvpmodel"
_MODE = re.compile(r"^\s*(\d+)\s*$", re.MULTILINE)
_LISTED = re.compile(r"POWER_MODEL\s+ID=(\d+)")

Run = Callable[[Sequence[str]], tuple[int, str]]


def run_tool(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of `nvpmodel`; 127 when there is no such tool."""
    if shutil.which("nvpmodel") is None:
        return 127, "nvpmodel is not installed"
    done = subprocess.run(
        ["nvpmodel", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


class NvpmodelKnobs:
    """The board's power mode. Modes that ask for a reboot fail: nothing is confirmed for them."""

    name = "nvpmodel"

    def __init__(
        self, *, run: Run = run_tool, conf: Path = Path("/etc/nvpmodel.conf"), is_root: bool = True
    ) -> None:
        self._run = run
        self.domains: tuple[Domain, ...] = ()
        self.advice_only = "" if is_root else "setting a power mode needs root"
        ids = sorted({float(n) for n in _LISTED.findall(_text(conf))})
        if not ids:
            self.advice_only = f"{conf} lists no power mode"
        elif self._mode() is None:  # bug-log E02: asked for its mode, a board may give none
            self.advice_only = "nvpmodel tells no current mode"
        else:
            self.domains = (Domain(name="mode", steps_mhz=tuple(ids)),)

    def read(self) -> dict[str, float]:
        """The mode's id."""
        mode = self._mode()
        return {} if mode is None or not self.domains else {"mode": float(mode)}

    def save(self) -> tuple[Saved, ...]:
        """The mode in force."""
        mode = self._mode() if self.domains else None
        return () if mode is None else (Saved(place=_PLACE, value=str(mode)),)

    def apply(self, clocks: Clocks) -> None:
        """Switch the mode."""
        for name, mode in clocks.items():
            if not self.domains or name != "mode" or mode not in self.domains[0].steps_mhz:
                raise BadRequest(f"there is no power mode {name} = {mode:g}", param=name)
            if self.advice_only:
                raise NotAllowed(f"the power mode cannot be set: {self.advice_only}")
            code, said = self._run(["-m", str(int(mode))])
            if code != 0:
                raise KnobFailed(f"nvpmodel refused mode {int(mode)}: {said.strip()[:200]}")

    def owns(self, place: str) -> bool:
        """Only the mode."""
        return place == _PLACE

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Switch back."""
        faults = []
        for one in saved:
            code, said = self._run(["-m", one.value]) if one.value.isdigit() else (2, "no mode id")
            if code != 0:
                faults.append(f"{one.place}: {said.strip()[:200]}")
        return tuple(faults)

    def _mode(self) -> int | None:
        code, said = self._run(["-q"])
        found = _MODE.search(said)
        return int(found.group(1)) if code == 0 and found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
