"""What serving cost so far, for /metrics: joules only where they are known, under their label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from floe.power.base import Label, Window

LABELS: tuple[Label, ...] = ("measured", "modelled", "unknown")
_NEW = 0.2
"""Weight of what is new in a running mean."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A figure with labels; a name ending in `_total` only grows."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Spent:
    """What one request has used so far: None once any part of it is not known."""

    energy_j: float | None = 0.0
    label: Label | None = None

    def add(self, energy_j: float | None, label: Label) -> None:
        """Another part. The worst label is the whole's."""
        worst = (self.label or label, label)
        self.label = max(worst, key=LABELS.index)
        known = self.energy_j is not None and energy_j is not None and self.label != "unknown"
        self.energy_j = (self.energy_j or 0.0) + (energy_j or 0.0) if known else None


class Books:
    """Totals and running means. One thread writes."""

    def __init__(self) -> None:
        self._joules: dict[tuple[Label, str], float] = {}
        self._unknown_s = 0.0
        self._requests: dict[Label, int] = dict.fromkeys(LABELS, 0)
        self._request_j: dict[Label, float] = {}
        self._last_j: dict[Label, float] = {}
        self._token_j: dict[Label, float] = {}
        self._asked = {"ttft": 0, "tpot": 0}
        self._missed = {"ttft": 0, "tpot": 0}
        self._step_ms: dict[str, float] = {}
        self.mean_tokens = 0.0

    def window(self, window: Window, *, busy: bool) -> None:
        """A stretch of time in which requests ran, or none did."""
        if window.energy_j is None or window.label == "unknown":
            self._unknown_s += window.duration_s
            return
        key = (window.label, "serving" if busy else "idle")
        self._joules[key] = self._joules.get(key, 0.0) + window.energy_j

    def request(self, spent: Spent, *, tokens: int) -> None:
        """A request that is over."""
        label = spent.label or "unknown"
        self._requests[label] += 1
        if tokens:
            self.mean_tokens = _mean(self.mean_tokens or None, float(tokens))
        if spent.energy_j is None or label == "unknown":
            return
        self._request_j[label] = self._request_j.get(label, 0.0) + spent.energy_j
        self._last_j[label] = spent.energy_j
        if tokens:
            self._token_j[label] = _mean(self._token_j.get(label), spent.energy_j / tokens)

    def goal(self, name: str, *, missed: bool) -> None:
        """A request with a goal, "ttft" or "tpot", and whether it was late."""
        self._asked[name] += 1
        self._missed[name] += missed

    def step(self, phase: str, duration_ms: float) -> None:
        """A turn of the engine."""
        self._step_ms[phase] = _mean(self._step_ms.get(phase), duration_ms)

    def readings(self) -> list[Reading]:
        """Everything that is known; there is no joule without a label, and none that is unknown."""
        out = [
            Reading(name="power_joules_total", value=j, labels={"label": label, "while": busy})
            for (label, busy), j in self._joules.items()
        ]
        out.append(Reading(name="power_unknown_seconds_total", value=self._unknown_s))
        named = (
            ("power_request_joules_total", self._request_j),
            ("power_last_request_joules", self._last_j),
            ("power_joules_per_token", self._token_j),
        )
        out += [
            Reading(name=name, value=j, labels={"label": label})
            for name, by_label in named
            for label, j in by_label.items()
        ]
        out += [
            Reading(name="power_requests_total", value=n, labels={"label": label})
            for label, n in self._requests.items()
        ]
        out += [
            Reading(name=f"power_slo_{what}_total", value=n, labels={"goal": goal})
            for what, by_goal in (("requests", self._asked), ("violations", self._missed))
            for goal, n in by_goal.items()
        ]
        out += [
            Reading(name="power_step_milliseconds", value=ms, labels={"phase": phase})
            for phase, ms in self._step_ms.items()
        ]
        return out


def _mean(before: float | None, value: float) -> float:
    return value if before is None else (1 - _NEW) * before + _NEW * value
