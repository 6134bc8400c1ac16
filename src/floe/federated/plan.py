"""Which rank a device can carry: the largest whose memory and step time fit its limits.

Two ranks are measured on the device; a line through them gives the others, and each row says
which it is. What a rank adds by itself is known: r (d_in + d_out) numbers for each layer, four
times over while training (weights, gradients, and both moments of Adam).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from floe.core.errors import BadRequest
from floe.core.files import atomic_write

RANKS = (4, 8, 16, 32, 64)
Source = Literal["measured", "modelled"]
_COPIES = 4
_FLOAT_BYTES = 4
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What training may take; None = anything."""

    memory_bytes: float | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        """Raises BadRequest for a limit that is not finite and above 0."""
        for name in ("memory_bytes", "step_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadRequest(f"the limit {name} must be finite and above 0", param=name)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One rank as it ran: the process's peak memory and the median time of a step."""

    rank: int
    memory_bytes: int
    step_s: float


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """A line of the table; `obstacle` says why a rank does not fit, "" where it does.

    `adapter_bytes` are the weights in 32 bits, computed. `memory_bytes` is the whole process.
    """

    rank: int
    adapter_bytes: int
    memory_bytes: int
    step_s: float
    source: Source
    obstacle: str = ""

    @property
    def fits(self) -> bool:
        """Whether a device within the limits can carry it."""
        return not self.obstacle


def adapter_bytes(shapes: Mapping[str, tuple[int, int]], rank: int) -> int:
    """Bytes of both factors in 32 bits over layers of (outputs, inputs)."""
    return rank * sum(o + i for o, i in shapes.values()) * _FLOAT_BYTES


def rank_table(
    shapes: Mapping[str, tuple[int, int]],
    measured: Sequence[Measurement],
    *,
    limits: Limits,
    ranks: Sequence[int] = RANKS,
) -> tuple[RankRow, ...]:
    """A row for each rank, rising. Between and beyond measured ranks, a line through the
    outermost two; memory grows with rank at least as fast as the weights' four copies.

    Raises:
        BadRequest: fewer than two different ranks were measured, or a rank below 1.
    """
    points = sorted({m.rank: m for m in measured}.values(), key=lambda m: m.rank)
    if len(points) < 2:
        raise BadRequest("a table needs two measured ranks", param="ranks")
    if not ranks or min(ranks) < 1:
        raise BadRequest("ranks must be 1 or more", param="ranks")
    known = {m.rank: m for m in points}
    low, high = points[0], points[-1]
    apart = high.rank - low.rank
    per_rank = max(
        (high.memory_bytes - low.memory_bytes) / apart, _COPIES * adapter_bytes(shapes, 1)
    )
    per_rank_s = max((high.step_s - low.step_s) / apart, 0.0)

    def row(rank: int) -> RankRow:
        found, size = known.get(rank), adapter_bytes(shapes, rank)
        if found is not None:
            return RankRow(
                rank=rank, adapter_bytes=size, memory_bytes=found.memory_bytes,
                step_s=found.step_s, source="measured",
            )  # fmt: skip
        return RankRow(
            rank=rank,
            adapter_bytes=size,
            memory_bytes=round(low.memory_bytes + per_rank * (rank - low.rank)),
            step_s=low.step_s + per_rank_s * (rank - low.rank),
            source="modelled",
        )

    return tuple(replace(r, obstacle=_obstacle(r, limits)) for r in map(row, sorted(set(ranks))))


def largest_fitting(table: Sequence[RankRow]) -> RankRow:
    """The row of the largest rank that fits.

    Raises:
        BadRequest: none does; says by how much the smallest misses.
    """
    fitting = [r for r in table if r.fits]
    if not fitting:
        least = min(table, key=lambda r: r.rank)
        raise BadRequest(f"not even rank {least.rank} fits: {least.obstacle}", param="rank")
    return max(fitting, key=lambda r: r.rank)


def keep_table(path: Path, base: str, table: Sequence[RankRow]) -> None:
    """Remember what was measured for this base."""
    rows = [[r.rank, r.adapter_bytes, r.memory_bytes, r.step_s] for r in table]
    with atomic_write(path) as file:
        file.write(json.dumps({"base": base, "rows": rows}).encode())


def kept_table(path: Path, base: str, *, limits: Limits) -> tuple[RankRow, ...]:
    """What was measured for this base, against the limits of now; empty where nothing was."""
    try:
        data = json.loads(path.read_bytes())
        if data["base"] != base:
            return ()
        rows = [
            RankRow(
                rank=int(rank), adapter_bytes=int(size), memory_bytes=int(memory),
                step_s=float(step_s), source="measured",
            )
            for rank, size, memory, step_s in data["rows"]
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return ()  # measured again at the next `floe fed plan`
    return tuple(replace(r, obstacle=_obstacle(r, limits)) for r in rows)


def preset_rank(free_bytes: int) -> int:
    """The rule of thumb that needs no measuring: under 2 GB free 8, under 4 GB 16, else 32."""
    if free_bytes < 2 * _GIB:
        return 8
    return 16 if free_bytes < 4 * _GIB else 32


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that a new process can have without swapping.

    Raises:
        BadRequest: the system does not say; name a limit instead.
    """
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # said below, as for a file without the line
    raise BadRequest(
        f"{meminfo} does not say how much memory is free; give a limit in MB", param="memory_mb"
    )


def _obstacle(row: RankRow, limits: Limits) -> str:
    if limits.memory_bytes is not None and row.memory_bytes > limits.memory_bytes:
        return f"needs {row.memory_bytes / 1e6:.0f} MB, {limits.memory_bytes / 1e6:.0f} are allowed"
    if limits.step_s is not None and row.step_s > limits.step_s:
        return f"a step takes {row.step_s:.2f} s, {limits.step_s:.2f} are allowed"
    return ""
