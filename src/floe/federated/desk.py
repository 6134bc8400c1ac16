"""Where a round's updates are received: each is taken or refused by name, and all is noted."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from floe.core.errors import BadRound, BadUpdate
from floe.federated.checks import Expected, change_norm, check_sender, check_update
from floe.federated.identity import Verify, unseal
from floe.federated.report import ClusterLine, Refusal, RoundReport
from floe.federated.rounds import Arrival, Opened, failure_in
from floe.federated.state import Codec, Kept, Memory
from floe.federated.update import AdapterState, Update

OUTLIER = 10.0
"""An update that moves this many times further than the round's median is refused."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the desk goes by. `adapter` gives a stored adapter by digest, None for "".
    `on_receipt` is what a shield that does not take a device's word does to what arrived."""

    expected: Expected
    devices: Mapping[str, str]
    verify: Verify
    codec: Codec
    adapter: Callable[[str], AdapterState | None]
    on_receipt: Callable[[AdapterState | None, Update], Update] = lambda _start, update: update


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What privacy the rounds have cost so far, and on which terms that holds."""

    epsilon: float | None = None
    terms: str = ""


class Desk:
    """The receiving end of one round."""

    def __init__(self, opened: Opened, memory: Memory, kept: Kept, rules: Rules) -> None:
        self.opened, self.memory, self.kept = opened, memory, kept
        self._rules = rules
        self._resumed = tuple(sorted(kept.norms))
        self._returned: list[str] = []
        self._refused: list[Refusal] = []
        self._failed: list[Refusal] = []
        self._bytes_up = 0

    def receive(self, arrival: Arrival) -> None:
        """Take the update in, or note why not."""
        self._bytes_up += len(arrival.data)
        reason = arrival.error or failure_in(arrival.data)
        if reason:
            self._failed.append(Refusal(client=arrival.client, reason=reason))
            return
        self._returned.append(arrival.client)
        try:
            self._take(arrival.data)
        except BadUpdate as error:
            self._refused.append(Refusal(client=arrival.client, reason=error.reason))

    def _take(self, data: bytes) -> None:
        rules, opened = self._rules, self.opened
        sealed = unseal(data)
        check_sender(
            sealed,
            opened,
            devices=rules.devices,
            verify=rules.verify,
            past=self.memory.past,
            taken=self.kept.norms,
        )
        cluster = opened.clusters.get(sealed.client, "")
        digest = self.memory.adapters.get(cluster, "")
        start = rules.adapter(digest)
        update = rules.codec.unpack(sealed.payload)
        check_update(
            update, sealed, rules.expected, start=start, started_from=digest, cluster=cluster
        )
        update = rules.on_receipt(start, update)
        self.kept.add(update, norm=change_norm(start, update.state))

    def refuse(self, client: str, reason: str) -> None:
        """Refuse what had been taken."""
        self.kept.drop(client)
        self._refused.append(Refusal(client=client, reason=reason))

    def refuse_outliers(self) -> None:
        """Refuse what moved far further than the others: from three updates on, as the median of
        fewer says nothing."""
        norms = dict(self.kept.norms)
        if len(norms) < 3:
            return
        limit = OUTLIER * statistics.median(norms.values())
        for client, norm in norms.items():
            if not norm <= limit:
                self.refuse(client, "norm_too_large")

    def require(self, at_least: int) -> None:
        """Raise BadRound with too few good updates."""
        if len(self.kept) < at_least:
            why = ", ".join(f"{r.client}: {r.reason}" for r in (*self._refused, *self._failed))
            raise BadRound(
                f"round {self.opened.round_number} has {len(self.kept)} good updates of at "
                f"least {at_least}; the model stays as it was" + (f" ({why})" if why else "")
            )

    def report(
        self,
        lines: Sequence[ClusterLine] = (),
        *,
        spent: Spent | None = None,
        timings_s: Mapping[str, float] | None = None,
        bytes_down: int = 0,
        void: str = "",
    ) -> RoundReport:
        """What became of the round."""
        spent, metrics = spent or Spent(), means(self.kept)
        if spent.epsilon is None and "epsilon" in metrics:  # each device keeps a ledger of its own
            highest = max(u.metrics.get("epsilon", 0.0) for u in self.kept)
            spent = Spent(epsilon=highest, terms="the highest of the devices' own ledgers")
        return RoundReport(
            round_number=self.opened.round_number,
            attempt=self.opened.attempt,
            void=void,
            selected=self.opened.selected,
            returned=tuple(self._returned),
            accepted=tuple(sorted(self.kept.norms)),
            resumed=self._resumed,
            refused=tuple(self._refused),
            failed=tuple(self._failed),
            clusters=tuple(lines),
            clipped_share=metrics.pop("clipped", None),
            epsilon=spent.epsilon,
            epsilon_of=spent.terms,
            bytes_up=self._bytes_up,
            bytes_down=bytes_down,
            truncation_error=max((c.truncation_error for c in lines), default=0.0),
            metrics=metrics,
            timings_s=timings_s or {},
        )


MOST_METRICS, LARGEST_METRIC, HEAVIEST = 64, 1e12, 10_000
_METRIC = re.compile(r"[a-z0-9_]{1,40}")


def means(updates: Iterable[Update]) -> dict[str, float]:
    """Means of the devices' finite numbers, weighted by examples; of clipping, by device.

    Numbers are a device's own word: what has an odd name or size is left out, and nobody weighs
    more than `HEAVIEST` examples.
    """
    sums: dict[str, tuple[float, float]] = {}
    for update in updates:
        for name, value in islice(update.metrics.items(), MOST_METRICS):
            if abs(value) <= LARGEST_METRIC and _METRIC.fullmatch(name):  # NaN is not
                weight = 1.0 if name == "clipped" else float(min(update.n_examples, HEAVIEST))
                total, weights = sums.get(name, (0.0, 0.0))
                sums[name] = (total + weight * value, weights + weight)
    return {name: total / weight for name, (total, weight) in sorted(sums.items())}
