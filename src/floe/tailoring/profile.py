"""A device profile: what layers cost on this machine, in the engine that serves, and its limits.

Models of random weights are timed in rounds, forwards and backwards in turn, and of each the
quietest look counts: what else the machine does makes a look longer, never shorter. The table of
layer costs is fitted to these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from floe.core.errors import BadPlan
from floe.tailoring.design import Probe, design, grid_of
from floe.tailoring.gguf_quant import check_quants
from floe.tailoring.latency_table import LatencyTable, Row, TableCost, fit_table, mape
from floe.tailoring.memory import Room, built_layers, kv_token_bytes
from floe.tailoring.plan import ModelShape, Plan
from floe.tailoring.probes import write_probe
from floe.tailoring.shapes import whole_plan

PROFILE_QUANTS = ("F16", "Q8_0", "Q5_1", "Q4_1", "Q4_0")
DEEP_TOKENS = 768
Told = Callable[[int, int], None]
"""Looks done, looks expected in all."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One look at a model: milliseconds a decoded token and for the prompt; millijoules a token.

    `depth_tokens` were in the cache on average while decoding. `energy_mj` is None where no
    meter was read.
    """

    decode_ms: float
    prefill_ms: float
    depth_tokens: int
    energy_mj: float | None = None


class Measure(Protocol):
    """Times a model in the serving engine."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt that `prefill_ms` is for."""
        ...

    def __call__(self, path: Path, *, depth_tokens: int | None = None) -> Timing:
        """One look at the file; with `depth_tokens`, about so many tokens are cached."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the device's owner asks for; None = no limit."""

    memory_budget_mb: float | None = None
    power_budget_w: float | None = None
    latency_slo_ms: float | None = None
    target_tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises BadPlan for a limit that is no finite number, 0 or more."""
        for name in ("memory_budget_mb", "power_budget_w", "latency_slo_ms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadPlan(f"the limit {name} cannot be {value}; give a number, 0 or more")


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """What a device can do with models of one shape.

    `machine` and `engine` say where it was measured, `settings` with what. `energy` is "measured"
    (by a meter), "modelled" (`watts` times time) or "unknown". `kv_token_bytes` is of the whole
    model's cache in F16.
    """

    limits: Limits
    table: LatencyTable
    rows: tuple[Row, ...]
    machine: Mapping[str, str]
    engine: str
    settings: Mapping[str, int | float | str | bool]
    made_at: str
    energy: str = "unknown"
    watts: float | None = None
    kv_token_bytes: int = 0
    facts: Mapping[str, float | int | str | None] = field(default_factory=dict)

    @property
    def shape(self) -> ModelShape:
        """The model the profile is for."""
        return self.table.shape

    def costs(
        self, *, room: Room | None = None, depth_tokens: int = 64, base_quant: str = "F16"
    ) -> TableCost:
        """Costs of plans for this device, energy included where it is known or modelled."""
        return TableCost(
            table=self.table,
            room=room or Room(),
            depth_tokens=depth_tokens,
            base_quant=base_quant,
            watts=self.watts if self.energy == "modelled" else None,
        )


def profile_rows(
    shape: ModelShape,
    measure: Measure,
    *,
    base: Path,
    folder: Path,
    quants: Sequence[str] = PROFILE_QUANTS,
    fine: bool = False,
    limit_s: float = 70.0,
    seed: int = 7,
    told: Told = lambda _done, _all: None,
) -> tuple[LatencyTable, tuple[Row, ...]]:
    """Time the design's models and fit the table.

    `base` lends its tokenizer to the models whose head is timed; `folder` holds one model at a
    time. The table's grid is finer with `fine`, which takes three times as many models.

    Raises:
        BadPlan: an unknown type, or none. Whatever `measure` raises.
    """
    if not quants:
        raise BadPlan("a profile needs one quantization type or more", param="quants")
    for quant in quants:
        check_quants({"ffn": quant})
    grid = grid_of(shape, quants, fine=fine)
    probes = design(
        shape, grid, rows_per_quant=24 if fine else 9, deep_tokens=DEEP_TOKENS, seed=seed
    )
    bench = _Bench(shape=shape, measure=measure, base=base, folder=folder)
    rows = time_probes(probes, bench, limit_s=limit_s, told=told)
    table = fit_table(rows, grid=grid, shape=shape, prompt_tokens=measure.prompt_tokens)
    return table, tuple(rows)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Writes a probe, looks at it, and takes it away."""

    shape: ModelShape
    measure: Measure
    base: Path
    folder: Path

    def __call__(self, probe: Probe) -> Row:
        path = self.folder / "probe.gguf"
        try:
            made = write_probe(
                path, self.shape, probe.layers, probe.quants,
                context_tokens=DEEP_TOKENS + 512, base=self.base if probe.whole_vocab else None,
            )  # fmt: skip
            timing = self.measure(path, depth_tokens=probe.depth_tokens)
        finally:
            path.unlink(missing_ok=True)
        return Row(
            layers=probe.layers,
            quants=probe.quants,
            n_vocab=made.n_vocab,
            depth_tokens=timing.depth_tokens,
            decode_ms=timing.decode_ms,
            prefill_ms=timing.prefill_ms,
            energy_mj=timing.energy_mj,
        )


def time_probes(
    probes: Sequence[Probe],
    look: Callable[[Probe], Row],
    *,
    limit_s: float,
    min_rounds: int = 2,
    told: Told = lambda _done, _all: None,
    clock_s: Callable[[], float] = time.monotonic,
) -> list[Row]:
    """One row a probe: the quietest of its looks. Rounds go on until `limit_s` is over.

    All probes are looked at `min_rounds` times, however long that takes.
    """
    began_s = clock_s()
    looks: list[list[Row]] = [[] for _ in probes]
    done = 0
    for turn in range(1_000):
        order = list(range(len(probes)))
        for i in order if turn % 2 == 0 else reversed(order):
            if turn >= min_rounds and clock_s() - began_s > limit_s:
                return [quietest(rows) for rows in looks]
            looks[i].append(look(probes[i]))
            done += 1
            told(done, max(min_rounds * len(probes), done))
    return [quietest(rows) for rows in looks]


def quietest(looks: Sequence[Row]) -> Row:
    """The shortest times of several looks at one model; energy of the shortest decode."""
    best = min(looks, key=lambda row: row.decode_ms)
    prefill_ms = min(row.prefill_ms for row in looks)
    return Row(**{**best.__dict__, "prefill_ms": prefill_ms})


def check_table(
    table: LatencyTable,
    plans: Sequence[Plan],
    measure: Measure,
    *,
    base: Path,
    folder: Path,
    rounds: int = 2,
    told: Told = lambda _done, _all: None,
) -> dict[str, float]:
    """`latency_model_mape` of decode and prefill: the table against models that are timed.

    The plans must name every group's type, of those in the table.

    Raises:
        BadPlan: a plan that the table has no costs for.
    """
    shape = table.shape
    probes = [Probe(layers=built_layers(p), quants=p.quants, whole_vocab=True) for p in plans]
    bench = _Bench(shape=shape, measure=measure, base=base, folder=folder)
    rows = time_probes(probes, bench, limit_s=0.0, min_rounds=rounds, told=told)
    decode, prefill = [], []
    for row in rows:
        said_ms = table.decode_ms(row.layers, row.quants, depth_tokens=row.depth_tokens)
        decode.append(said_ms / row.decode_ms - 1.0)
        prefill.append(table.prefill_ms(row.layers, row.quants) / row.prefill_ms - 1.0)
    return {"decode_mape": mape(decode), "prefill_mape": mape(prefill), "plans": float(len(rows))}


def kv_bytes_of(shape: ModelShape) -> int:
    """Cache bytes per token of the uncut model in F16."""
    return kv_token_bytes(shape, whole_plan(shape))
