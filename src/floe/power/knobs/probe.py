"""The knobs this machine has."""

from __future__ import annotations

import os
from pathlib import Path

from floe.core.errors import BadConfig
from floe.power.base import Knobs
from floe.power.knobs.cpufreq import cpufreq_knobs
from floe.power.knobs.devfreq import devfreq_knobs
from floe.power.knobs.many import ManyKnobs
from floe.power.knobs.nvml import NvmlKnobs
from floe.power.knobs.nvpmodel import NvpmodelKnobs
from floe.power.knobs.simulated import NoKnobs

NAMES = ("auto", "cpufreq", "devfreq", "nvml", "nvpmodel", "noop")


def all_knobs(root: Path = Path("/")) -> dict[str, Knobs]:
    """Every kind of knob that was looked for, by name."""
    conf = root / "etc/nvpmodel.conf"
    return {
        "cpufreq": cpufreq_knobs(root),
        "devfreq": devfreq_knobs(root),
        "nvml": NvmlKnobs(),
        "nvpmodel": NvpmodelKnobs(conf=conf, is_root=os.geteuid() == 0),
    }


def open_knobs(name: str = "auto", *, root: Path = Path("/")) -> Knobs:
    """The named knobs; auto = all clocks of this machine that exist, read-only ones too.

    The power mode is never part of auto: its limits would move under the clocks.

    Raises:
        BadConfig: no such knobs.
    """
    if name not in NAMES:
        raise BadConfig(f"power.knobs must be one of {', '.join(NAMES)}", param="power.knobs")
    if name == "noop":
        return NoKnobs(reason="power.knobs is noop")
    found = all_knobs(root)
    if name != "auto":
        return found[name]
    parts = [found[n] for n in ("cpufreq", "devfreq", "nvml") if found[n].domains]
    return ManyKnobs(parts=parts) if parts else NoKnobs()
