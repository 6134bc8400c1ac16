"""What a round says of itself: numbers, names of devices and reasons, no word of their data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An update that was not taken, or a device that sent none: whose, and why."""

    client: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ClusterLine:
    """One cluster's row. `changed`: it has a new adapter, `adapter` (digest, "" = none yet)."""

    cluster: str
    clients: tuple[str, ...]
    changed: bool
    n_examples: int = 0
    rank: int = 0
    adapter: str = ""
    truncation_error: float = 0.0
    compression_error: float = 0.0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """One round. `void`: why it changed nothing, "" when it counted. `epsilon` is what has been
    spent so far, None where nothing is accounted; `epsilon_of` says on which terms. `clipped_share`
    is of the updates accepted; None where nobody clips. `metrics`: means over devices, weighted by
    examples. `secure_sum`: no single update was seen, so none could be refused for what it is."""

    round_number: int
    attempt: int = 1
    void: str = ""
    selected: tuple[str, ...]
    returned: tuple[str, ...]
    accepted: tuple[str, ...]
    resumed: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    failed: tuple[Refusal, ...] = ()
    clusters: tuple[ClusterLine, ...] = ()
    clipped_share: float | None = None
    epsilon: float | None = None
    epsilon_of: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    truncation_error: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    secure_sum: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON, with counts beside names: `refused_by_reason`, `failed_by_reason`."""
        return asdict(self) | {
            "n_selected": len(self.selected),
            "n_returned": len(self.returned),
            "n_accepted": len(self.accepted),
            "n_refused": len(self.refused),
            "refused_by_reason": by_reason(self.refused),
            "failed_by_reason": by_reason(self.failed),
        }


def by_reason(refusals: Sequence[Refusal]) -> dict[str, int]:
    """How many for each reason, the most frequent first."""
    return dict(Counter(r.reason for r in refusals).most_common())


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """The reports in a server's folder, in order; empty where no round was held."""
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "reports").glob("round-*.json"))
    ]


def totals(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reports of a federation (as JSON) in one line of figures."""
    counted = [r for r in reports if not r["void"]]
    refused: Counter[str] = Counter()
    for report in reports:
        refused.update(report["refused_by_reason"])
    last = counted[-1] if counted else None
    return {
        "rounds": len(counted),
        "void": len(reports) - len(counted),
        "accepted": sum(r["n_accepted"] for r in counted),
        "refused": sum(refused.values()),
        "refused_by_reason": dict(refused.most_common()),
        "bytes_up": sum(r["bytes_up"] for r in reports),
        "bytes_down": sum(r["bytes_down"] for r in reports),
        "epsilon": last["epsilon"] if last else None,
        "clusters": len(last["clusters"]) if last else 0,
    }
