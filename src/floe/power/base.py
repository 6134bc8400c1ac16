"""The nouns of power: energy with its label, clocks by domain, what meters and knobs can do.

Units stand in names. A *rail* is one thing whose energy is known (a supply line, a CPU package, a
GPU); a *domain* is one clock that can be set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Label = Literal["measured", "modelled", "unknown"]
Phase = Literal["prefill", "decode", "idle"]
Clocks = Mapping[str, float]
"""MHz by domain: "cpu", "gpu", "emc" (memory)."""


@dataclass(frozen=True, kw_only=True)
class RailEnergy:
    """Joules of one rail in one window; None, with the reason, where they are unknown."""

    rail: str
    energy_j: float | None
    label: Label
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a window cost. `counted` names the rails whose sum `energy_j` is.

    A window with one modelled rail is modelled, with one unknown rail unknown (invariant 9).
    """

    duration_s: float
    rails: tuple[RailEnergy, ...]
    energy_j: float | None
    label: Label
    counted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SensorStatus:
    """One sensor that was looked for: what it is, whether it is used, why not, how to get it."""

    name: str
    kind: str
    place: str
    usable: bool
    reason: str = ""
    todo: str = ""


class Meter(Protocol):
    """Energy in windows. Windows may overlap; `begin` and `end` cost microseconds."""

    @property
    def name(self) -> str:
        """A short name for reports."""
        ...

    @property
    def label(self) -> Label:
        """What its figures are at best."""
        ...

    def begin(self) -> object:
        """Open a window."""
        ...

    def end(self, mark: object) -> Window:
        """What was spent since `begin`; never raises for a sensor that is gone: it is unknown."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A clock with the frequencies it takes, rising; a power limit's steps are watts.

    `is_continuous`: anything between the first and the last.
    """

    name: str
    steps_mhz: tuple[float, ...]
    is_continuous: bool = False

    def nearest(self, mhz: float) -> float:
        """The frequency it takes that is nearest to `mhz`, within its bounds (bug-log E07)."""
        low, high = self.steps_mhz[0], self.steps_mhz[-1]
        if self.is_continuous:
            return min(max(mhz, low), high)
        return min(self.steps_mhz, key=lambda step: abs(step - mhz))


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A value that was in force before Floe changed it: where it lies and what it was."""

    place: str
    value: str


class Knobs(Protocol):
    """The clocks of one machine, read and set."""

    @property
    def name(self) -> str:
        """A short name for reports."""
        ...

    @property
    def domains(self) -> tuple[Domain, ...]:
        """What can be set, or only read where `advice_only` gives a reason."""
        ...

    @property
    def advice_only(self) -> str:
        """Why nothing can be set ("" = it can)."""
        ...

    def read(self) -> dict[str, float]:
        """MHz by domain, as they are now; a domain that cannot be read is left out."""
        ...

    def save(self) -> tuple[Saved, ...]:
        """What `put_back` needs to undo every change, in the order to write it."""
        ...

    def apply(self, clocks: Clocks) -> None:
        """Set the given domains, all or none.

        Raises:
            BadRequest: an unknown domain or a frequency outside its bounds.
            NotAllowed: no rights, or read-only knobs.
            KnobFailed: the kernel or driver refused; what was written before is undone.
        """
        ...

    def owns(self, place: str) -> bool:
        """Whether `put_back` may write there: a lease file is not trusted blindly."""
        ...

    def put_back(self, saved: Sequence[Saved]) -> tuple[str, ...]:
        """Write saved values back, every one that can be; the faults of those that could not."""
        ...


@dataclass(frozen=True, kw_only=True)
class ControlState:
    """What a controller sees before a step.

    `tokens_left` is predicted. `ttft_left_ms` is the time until the first token is due;
    `tpot_allowed_ms` what each token still to come may take so that the request's mean meets its
    goal. `load` is what other programs take, 0 to 1; `battery` 0 to 1, None on mains; `waiting`
    counts the requests behind this one.
    """

    phase: Phase
    prompt_tokens: int
    tokens_done: int
    tokens_left: float
    ttft_left_ms: float
    tpot_allowed_ms: float
    clocks: Clocks
    temperature_c: float
    load: float = 0.0
    battery: float | None = None
    waiting: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that was done: tokens through the model and what they took."""

    phase: Phase
    tokens: int
    duration_ms: float
    clocks: Clocks
    energy_j: float | None = None
    label: Label = "unknown"
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class Goals:
    """The latency goals of a service class: first token, and each token after it, milliseconds."""

    ttft_ms: float
    tpot_ms: float


class Controller(Protocol):
    """Chooses clocks at phase and token boundaries. Never blocks; the same state, the same choice.

    A controller that learns does so in `seen`.
    """

    @property
    def name(self) -> str:
        """Its name in configuration and reports."""
        ...

    def begin(self, goals: Goals) -> None:
        """A request starts."""
        ...

    def decide(self, state: ControlState) -> dict[str, float]:
        """MHz by domain for the next step."""
        ...

    def seen(self, step: Step) -> None:
        """What a step took."""
        ...


@dataclass(frozen=True, kw_only=True)
class Board:
    """The facts of a board that controllers may know: its clocks and where its figures are from."""

    name: str
    domains: tuple[Domain, ...]
    label: Label = "modelled"
    facts: Mapping[str, float | str] = field(default_factory=dict)
