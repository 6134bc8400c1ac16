"""When time or energy is short, a request gets fewer adapters and less cloud.

What a token costs is learned by kind of request, (adapters, cloud): milliseconds always, joules
where they are measured. A kind that was never seen is told from one that was, by assumed factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from floe.core.request import Request
from floe.core.route import Route
from floe.core.sections import PowerConfig
from floe.power.choices import Choice, Option, Shortage, choose

Kind = tuple[int, bool]
LOW_BATTERY = 0.15
_NEW = 0.2
_ADAPTER, _CLOUD = 0.06, 0.3
"""Assumed: what each adapter and the cloud add to a token's time and energy."""
_FROM_CLOUD, _FROM_ADAPTER = 10.0, 1.0
"""Order of quality: the cloud's voice is worth more than any number of adapters."""


@dataclass(frozen=True, kw_only=True)
class _Cost:
    latency_ms: float
    energy_j: float | None


class Sparing:
    """`Parts.spare`. Learned from by the listener's thread, asked on the event loop."""

    def __init__(
        self, config: PowerConfig, *, has_cloud: bool, mean_tokens: Callable[[], float],
        battery: Callable[[], float | None],
    ) -> None:  # fmt: skip
        self._config, self._has_cloud = config, has_cloud
        self._mean_tokens, self._battery = mean_tokens, battery
        self._costs: dict[Kind, _Cost] = {}
        self.cut_adapters = self.cut_cloud = 0

    def learn(
        self, *, adapters: int, cloud: bool, latency_ms: float, energy_j: float | None
    ) -> None:
        """What a token of a request took; joules only where they were measured."""
        kind = (adapters, cloud)
        before = self._costs.get(kind)
        if before is not None:
            latency_ms = (1 - _NEW) * before.latency_ms + _NEW * latency_ms
            if energy_j is not None and before.energy_j is not None:
                energy_j = (1 - _NEW) * before.energy_j + _NEW * energy_j
            energy_j = before.energy_j if energy_j is None else energy_j
        cost = _Cost(latency_ms=latency_ms, energy_j=energy_j)
        self._costs = {**self._costs, kind: cost}  # another thread may be going through the old one

    def __call__(self, request: Request, route: Route) -> tuple[Request, Route]:
        """The request and its route, cheaper where something is short; explicit routes stay."""
        choice = self.choice(request, route)
        if choice is None:
            return request, route
        option = choice.option
        if request.cloud and self._has_cloud and option.cloud_share == 0.0:
            request = replace(request, cloud=False)
            self.cut_cloud += 1
        if option.adapters < len(route.shares):
            route = _largest(route)
            self.cut_adapters += 1
        return request, route

    def choice(self, request: Request, route: Route) -> Choice | None:
        """What is chosen and from what; None where nothing is short."""
        shortage = self._shortage(request)
        saves = self._saves(request)
        if not saves and shortage == Shortage():
            return None
        options = self._options(request, route)
        if saves:
            kept = min(options, key=lambda o: (o.quality,))
            return replace(choose([kept], Shortage()), pareto=choose(options, Shortage()).pareto)
        return choose(options, shortage)

    def _saves(self, request: Request) -> bool:
        charge = self._battery()
        mode = request.power.dvfs_mode or self._config.dvfs_mode
        return mode == "saver" or (charge is not None and charge < LOW_BATTERY)

    def _shortage(self, request: Request) -> Shortage:
        wish, config = request.power, self._config
        latency_ms = wish.latency_slo_ms or config.tpot_slo_ms or None
        tokens = request.sampling.max_tokens
        tokens = min(tokens, round(self._mean_tokens()) or tokens)
        if request.budgets.deadline_ms is not None:
            due_ms = request.budgets.deadline_ms / max(tokens, 1)
            latency_ms = due_ms if latency_ms is None else min(latency_ms, due_ms)
        watts = least_budget_w(wish.power_budget_w, config.power_budget_w)
        return Shortage(latency_ms=latency_ms, power_w=watts if self._knows_energy() else None)

    def _knows_energy(self) -> bool:
        """Watts that nobody measures are the clocks' business alone."""
        return any(cost.energy_j is not None for cost in self._costs.values())

    def _options(self, request: Request, route: Route) -> list[Option]:
        n = len(route.shares)
        counts = sorted({n, min(n, 1)}) if route.how == "routed" else [n]
        clouds = [False, True] if request.cloud and self._has_cloud else [False]
        return [self._option(count, cloud) for count in counts for cloud in clouds]

    def _option(self, adapters: int, cloud: bool) -> Option:
        cost, is_known = self._cost((adapters, cloud))
        return Option(
            name=f"{adapters} adapters, {'with' if cloud else 'without'} the cloud",
            quality=_FROM_CLOUD * cloud + _FROM_ADAPTER * adapters,
            latency_ms=cost.latency_ms if cost else None,
            energy_j=cost.energy_j if cost else None,
            label="unknown" if cost is None else "measured" if is_known else "modelled",
            adapters=adapters,
            cloud_share=float(cloud),
        )

    def _cost(self, kind: Kind) -> tuple[_Cost | None, bool]:
        """What the kind costs, and whether it was seen itself."""
        if kind in self._costs:
            return self._costs[kind], True
        if not self._costs:
            return None, False
        near = min(self._costs, key=lambda k: (k[1] != kind[1], abs(k[0] - kind[0])))
        factor, cost = _factor(kind) / _factor(near), self._costs[near]
        joules = None if cost.energy_j is None else cost.energy_j * factor
        return _Cost(latency_ms=cost.latency_ms * factor, energy_j=joules), False


def least_budget_w(asked_w: float | None, configured_w: float) -> float | None:
    """Watts a request may draw: nobody can ask for more than the configuration allows."""
    return min((w for w in (asked_w, configured_w) if w), default=None)


def _factor(kind: Kind) -> float:
    return 1.0 + _ADAPTER * kind[0] + _CLOUD * kind[1]


def _largest(route: Route) -> Route:
    """The route with its heaviest adapter alone."""
    heaviest = max(route.shares, key=lambda share: share.weight)
    reason = f"{route.reason}; only the first adapter, to spare time or energy".removeprefix("; ")
    return replace(route, shares=(replace(heaviest, weight=1.0),), reason=reason)
