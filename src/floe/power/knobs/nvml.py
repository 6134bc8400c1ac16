"""NVIDIA clocks through NVML's locked clocks (application clocks are deprecated, bug-log E20).

NVML cannot say whether clocks were locked before: giving them back means unlocking. Memory clocks
can be locked from Ampere on; on an older GPU there is no such domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from floe.core.errors import BadRequest, KnobFailed, NotAllowed
from floe.power.base import Clocks, Domain, Saved
from floe.power.meters.nvml import load_nvml

_AMPERE = 7  # NVML_DEVICE_ARCH_AMPERE
_PLACE = "nvml:{index}:{domain}"


class NvmlKnobs:
    """The clocks of one GPU."""

    name = "nvml"

    def __init__(self, *, index: int = 0, load: Callable[[], tuple[Any, str]] = load_nvml) -> None:
        self._nvml, self.advice_only = load()
        self._index, self._handle = index, None
        self.domains: tuple[Domain, ...] = ()
        if self._nvml is not None:
            self._open()

    def read(self) -> dict[str, float]:
        """MHz by domain, as the GPU tells them."""
        kinds = {"gpu": "NVML_CLOCK_GRAPHICS", "emc": "NVML_CLOCK_MEM"}
        out: dict[str, float] = {}
        for domain in self.domains:
            kind = getattr(self._nvml, kinds[domain.name])
            try:
                out[domain.name] = float(self._nvml.nvmlDeviceGetClockInfo(self._handle, kind))
            except self._nvml.NVMLError:
                continue
        return out

    def save(self) -> tuple[Saved, ...]:
        """That the clocks are unlocked: more cannot be asked."""
        return tuple(Saved(place=self._place(d.name), value="unlocked") for d in self.domains)

    def apply(self, clocks: Clocks) -> None:
        """Lock the given domains, all or none."""
        known = {domain.name: domain for domain in self.domains}
        for name, mhz in clocks.items():
            if name not in known:
                raise BadRequest(f"GPU {self._index} has no clock {name!r}", param=name)
            low, high = known[name].steps_mhz[0], known[name].steps_mhz[-1]
            if not low <= mhz <= high:
                raise BadRequest(
                    f"{name} = {mhz:g} MHz is outside {low:g} to {high:g} MHz", param=name
                )
        done: list[str] = []
        for name, mhz in clocks.items():
            wanted = round(known[name].nearest(mhz))
            try:
                self._setter(name)(self._handle, wanted, wanted)
            except self._nvml.NVMLError as error:
                self.put_back([Saved(place=self._place(d), value="unlocked") for d in done])
                raise self._refused(name, error) from error
            done.append(name)

    def owns(self, place: str) -> bool:
        """Its own GPU's domains."""
        return any(place == self._place(d.name) for d in self.domains)

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Unlock."""
        faults = []
        for one in saved:
            domain = one.place.rsplit(":", 1)[-1]
            reset = "nvmlDeviceResetGpuLockedClocks"
            if domain == "emc":
                reset = "nvmlDeviceResetMemoryLockedClocks"
            try:
                getattr(self._nvml, reset)(self._handle)
            except self._nvml.NVMLError as error:
                faults.append(f"{one.place}: {error}")
        return tuple(faults)

    def _open(self) -> None:
        nvml = self._nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
            memory = sorted(nvml.nvmlDeviceGetSupportedMemoryClocks(self._handle))
            graphics = sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(self._handle, memory[-1]))
            locks_memory = nvml.nvmlDeviceGetArchitecture(self._handle) >= _AMPERE
        except (nvml.NVMLError, IndexError) as error:
            self.advice_only = f"GPU {self._index} tells no clocks: {error}"
            return
        domains = [Domain(name="gpu", steps_mhz=tuple(float(c) for c in graphics))]
        if locks_memory:
            domains.append(Domain(name="emc", steps_mhz=tuple(float(c) for c in memory)))
        self.domains = tuple(domains)

    def _setter(self, name: str) -> Callable[[Any, int, int], None]:
        if name == "emc":
            return self._nvml.nvmlDeviceSetMemoryLockedClocks  # type: ignore[no-any-return]
        return self._nvml.nvmlDeviceSetGpuLockedClocks  # type: ignore[no-any-return]

    def _refused(self, name: str, error: Exception) -> NotAllowed | KnobFailed:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            return NotAllowed("GPU clocks cannot be set without rights: run as root")
        return KnobFailed(f"GPU {self._index} did not take {name}: {error}; nothing was changed")

    def _place(self, domain: str) -> str:
        return _PLACE.format(index=self._index, domain=domain)
