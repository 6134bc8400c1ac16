"""A board as tables over its settings: how long a step takes and what it draws. Always modelled.

Legend: S settings, D domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from floe.power.base import Board, Clocks, Domain

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Thermal:
    """One thermal mass: C dT/dt = P - (T - ambient) / R. Constants are assumed unless said."""

    ambient_c: float = 25.0
    resistance_c_per_w: float = 1.5
    time_constant_s: float = 60.0
    limit_c: float = 80.0

    def after(self, temperature_c: float, power_w: float, seconds: float) -> float:
        """The temperature after `seconds` at constant power."""
        end_c = self.ambient_c + self.resistance_c_per_w * power_w
        return float(end_c + (temperature_c - end_c) * np.exp(-seconds / self.time_constant_s))


@dataclass(frozen=True, kw_only=True)
class BoardModel:
    """Times in milliseconds and power in watts of every setting.

    `prefill_ms(n)` and `decode_ms(context)` give (S,); a step of another program's load l takes
    1 / (1 - l) times as long. `switch_ms` is lost at every change of clocks, at the power of the
    new setting.
    """

    board: Board
    settings_SD: Vector
    prefill_ms: Callable[[int], Vector]
    decode_ms: Callable[[int], Vector]
    prefill_w_S: Vector
    decode_w_S: Vector
    idle_w_S: Vector
    switch_ms: float
    thermal: Thermal = field(default_factory=Thermal)

    @property
    def n_settings(self) -> int:
        """S."""
        return len(self.settings_SD)

    @cached_property
    def fastest(self) -> int:
        """The setting that decodes fastest: what a performance governor runs at."""
        return int(np.argmin(self.decode_ms(0) + self.prefill_ms(64)))

    @property
    def thriftiest(self) -> int:
        """The setting that draws least while it waits; of equal ones the one that decodes so."""
        return int(np.argmin(self.idle_w_S + 1e-6 * self.decode_w_S))

    def clocks(self, setting: int) -> dict[str, float]:
        """MHz by domain of a setting."""
        return dict(self._clocks_by_setting[setting])

    @cached_property
    def _clocks_by_setting(self) -> tuple[dict[str, float], ...]:
        names = [d.name for d in self.board.domains]
        return tuple(
            dict(zip(names, map(float, row), strict=True)) for row in self.settings_SD.tolist()
        )

    @cached_property
    def _setting_at(self) -> dict[tuple[float, ...], int]:
        return {tuple(row): n for n, row in enumerate(self.settings_SD.tolist())}

    def index_of(self, clocks: Clocks) -> int:
        """The setting nearest to `clocks`; a domain that is not named counts as it is fastest."""
        wanted = [clocks.get(d.name, d.steps_mhz[-1]) for d in self.board.domains]
        exact = self._setting_at.get(tuple(wanted))
        if exact is not None:
            return exact
        span_D = self.settings_SD.max(axis=0)
        return int(np.argmin((((self.settings_SD - wanted) / span_D) ** 2).sum(axis=1)))

    def perturbed(
        self, *, static: float = 1.0, slower_memory: float = 1.0, name: str = "perturbed"
    ) -> BoardModel:
        """The board with its lowest idle power scaled and decode slower, for unseen boards."""
        extra_w = (static - 1.0) * float(self.idle_w_S.min())
        decode_ms = self.decode_ms
        return replace(
            self,
            board=replace(self.board, name=name),
            decode_ms=lambda context: decode_ms(context) * slower_memory,
            prefill_w_S=self.prefill_w_S + extra_w,
            decode_w_S=self.decode_w_S + extra_w,
            idle_w_S=self.idle_w_S + extra_w,
        )


def grid(domains: tuple[Domain, ...]) -> Vector:
    """Every combination of steps, (S, D), the last domain moving fastest."""
    axes = np.meshgrid(*(np.asarray(d.steps_mhz, float) for d in domains), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A model with how well it fits rows it has not seen, in shares of the measured value."""

    model: BoardModel
    latency_mape: float | None
    power_mape: float | None
    notes: Mapping[str, float | str] = field(default_factory=dict)
