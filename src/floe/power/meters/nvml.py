"""NVIDIA GPUs through NVML: the driver's energy counter, or its power where there is none.

The one door to `pynvml` (package nvidia-ml-py) for meters; clocks are set in `knobs.nvml`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from floe.power.base import SensorStatus
from floe.power.meters.rails import CounterRail, PowerRail, Rail


def load_nvml() -> tuple[Any, str]:
    """The initialised library, or None and why there is none."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"no NVIDIA driver: {error}"
    return nvml, ""


def nvml_rails(
    load: Callable[[], tuple[Any, str]] = load_nvml,
) -> tuple[list[Rail], list[str], list[SensorStatus]]:
    """One rail per GPU, all of them counted, and what was found."""
    nvml, reason = load()
    if nvml is None:
        todo = "pip install 'floe[power]'" if "installed" in reason else ""
        status = SensorStatus(
            name="nvml", kind="GPU", place="NVML", usable=False, reason=reason, todo=todo
        )
        return [], [], [status]
    rails: list[Rail] = []
    found: list[SensorStatus] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        rail, reason = _rail(nvml, handle, f"gpu {index}")
        found.append(
            SensorStatus(
                name=f"gpu {index}", kind="GPU", place="NVML", usable=rail is not None,
                reason=reason,
            )
        )  # fmt: skip
        if rail is not None:
            rails.append(rail)
    return rails, [rail.name for rail in rails], found


def _rail(nvml: Any, handle: Any, name: str) -> tuple[Rail | None, str]:
    """The best rail the GPU offers, or why it offers none."""

    def guarded(call: Callable[[Any], int], unit: float) -> Callable[[], float]:
        def read() -> float:
            try:
                return float(call(handle)) * unit
            except nvml.NVMLError as error:
                raise OSError(0, str(error)) from error

        return read

    energy = guarded(nvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3)  # millijoules
    power = guarded(nvml.nvmlDeviceGetPowerUsage, 1e-3)  # milliwatts
    try:
        energy()
        return CounterRail(name=name, read_j=energy, range_j=None), ""
    except OSError:
        pass  # older than Volta: the power is sampled
    try:
        power()
        return PowerRail(name=name, read_w=power), ""
    except OSError as error:
        return None, f"it tells neither energy nor power: {error.strerror}"
