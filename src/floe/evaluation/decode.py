"""Floe's engine beside bare llama.cpp: decode, prefill, adapter switches, memory.

Both sides run in processes of their own and in turn, so that what else happens on the machine
hits both alike. A ratio is the median over rounds of one side's figure over the other's in the
same round; the absolute figures are medians of their own, so their quotient differs slightly.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floe.core.errors import FloeError
from floe.evaluation.processes import Worker, worker

Say = Callable[[str], None]
MODULE = "floe.evaluation.decode_worker"
KEYS = ("bare", "floe", "floe_async")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    decode_rounds: int
    decode_tokens: int
    prompt_tokens: int
    prefill_rounds: int
    prefill_tokens: int
    switches: int


QUICK = Plan(
    decode_rounds=10, decode_tokens=24, prompt_tokens=64, prefill_rounds=4, prefill_tokens=384,
    switches=4,
)  # fmt: skip
FULL = Plan(
    decode_rounds=40, decode_tokens=64, prompt_tokens=64, prefill_rounds=12, prefill_tokens=768,
    switches=16,
)  # fmt: skip


@dataclass(kw_only=True)
class Measured:
    """Tokens per second by side and round, memory and switches."""

    decode: dict[str, list[float]] = field(default_factory=lambda: {k: [] for k in KEYS})
    prefill: dict[str, list[float]] = field(default_factory=lambda: {k: [] for k in KEYS[:2]})
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    switch: dict[str, list[float]] | None = None
    rebind: dict[str, list[float]] | None = None


def measure_decode(
    *, model: Path, adapters: Sequence[str], threads: int, plan: Plan, seed: int, say: Say
) -> Measured:
    """Run the plan.

    Raises:
        FloeError: a side failed, or Floe's process had imported torch.
    """
    shared = [str(model), "--threads", str(threads)]
    out = Measured()
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(worker(MODULE, [name, *shared], bare=name == "bare"))
            for name in ("bare", "floe")
        }
        rng = random.Random(seed)
        n_vocab = min(int(w.ask("facts")["n_vocab"]) for w in sides.values())

        def prompt(n: int) -> list[int]:
            return [rng.randrange(n_vocab // 10, n_vocab) for _ in range(n)]

        _decode_rounds(sides, prompt(plan.prompt_tokens), plan, out)
        say(f"decode: {plan.decode_rounds} rounds of {plan.decode_tokens} tokens each")
        _prefill_rounds(sides, prompt, plan, out)
        say(f"prefill: {plan.prefill_rounds} rounds of {plan.prefill_tokens} tokens each")
        out.memory = {name: w.ask("facts") for name, w in sides.items()}
        if out.memory["floe"]["torch"]:
            raise FloeError("Floe's engine imported torch; serving must run without it")
        if adapters:
            sides["floe"].ask("load", adapters=list(adapters))
            out.switch = _merged(sides["floe"].ask("switch", n_steady=6) for _ in _n(plan))
    if adapters:
        with worker(MODULE, ["floe", *shared, "--max-contexts", "1"], bare=False) as one:
            one.ask("load", adapters=list(adapters))
            one.ask("rebind")  # the first use of each adapter is not a switch
            out.rebind = _merged(one.ask("rebind") for _ in _n(plan))
        say(f"adapter switches: {plan.switches} rounds")
    return out


def _n(plan: Plan) -> range:
    return range(plan.switches)


def _merged(replies: Any) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for reply in replies:
        for name, values in reply.items():
            out.setdefault(name, []).extend(values)
    return out


def _decode_rounds(sides: dict[str, Worker], prompt: list[int], plan: Plan, out: Measured) -> None:
    calls = [("bare", "decode"), ("floe", "decode"), ("floe", "async_decode")]
    for side, do in calls:  # the prompt goes in, buffers are made; not counted
        sides[side].ask(do, prompt=prompt, n_tokens=4)
    n = plan.decode_tokens
    for i in range(plan.decode_rounds):
        for side, do in calls if i % 2 == 0 else reversed(calls):
            took_s = sides[side].ask(do, prompt=prompt, n_tokens=n)
            key = "floe_async" if do == "async_decode" else side
            out.decode[key].append(n / took_s)


def _prefill_rounds(
    sides: dict[str, Worker], prompt: Callable[[int], list[int]], plan: Plan, out: Measured
) -> None:
    n = plan.prefill_tokens
    for i in range(plan.prefill_rounds):
        tokens = prompt(n)
        for side in ("bare", "floe") if i % 2 == 0 else ("floe", "bare"):
            out.prefill[side].append(n / sides[side].ask("prefill", prompt=tokens))


def decode_figures(measured: Measured, plan: Plan) -> dict[str, Any]:
    """The fields of this part; None for what was not measured."""
    bare, floe = (measured.memory.get(side, {}) for side in ("bare", "floe"))
    return {
        "ratio_decode": paired(measured.decode["floe"], measured.decode["bare"]),
        "ratio_decode_async": paired(measured.decode["floe_async"], measured.decode["bare"]),
        "ratio_prefill": paired(measured.prefill["floe"], measured.prefill["bare"]),
        "bare_decode_tokens_s": median(measured.decode["bare"]),
        "floe_decode_tokens_s": median(measured.decode["floe"]),
        "floe_async_decode_tokens_s": median(measured.decode["floe_async"]),
        "bare_prefill_tokens_s": median(measured.prefill["bare"]),
        "floe_prefill_tokens_s": median(measured.prefill["floe"]),
        "switch_ms": _cost_ms(measured.switch, "first_s", "steady_s"),
        "switch_rebind_ms": _cost_ms(measured.rebind, "changed_s", "same_s"),
        "adapter_decode_ms": _ms(measured.switch, "steady_s"),
        "rss_overhead_mb": difference(floe.get("rss_mb"), bare.get("rss_mb")),
        "pss_overhead_mb": difference(floe.get("pss_mb"), bare.get("pss_mb")),
        "bare_rss_mb": bare.get("rss_mb"),
        "floe_rss_mb": floe.get("rss_mb"),
        "bare_gomp_spincount": bare.get("gomp_spincount"),
        "floe_gomp_spincount": floe.get("gomp_spincount"),
        "decode_rounds": len(measured.decode["floe"]) or None,
        "decode_tokens": plan.decode_tokens,
        "decode_prompt_tokens": plan.prompt_tokens,
        "prefill_rounds": len(measured.prefill["floe"]) or None,
        "prefill_tokens": plan.prefill_tokens,
        "switch_rounds": plan.switches if measured.switch else None,
    }


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Median over rounds of ours over theirs; None when nothing was measured."""
    return median([a / b for a, b in zip(ours, theirs, strict=True)])


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Ours over theirs; None when either was not measured or theirs is 0."""
    return ours / theirs if ours is not None and theirs else None


def difference(ours: float | None, theirs: float | None) -> float | None:
    """Ours less theirs; None when either was not measured."""
    return ours - theirs if ours is not None and theirs is not None else None


def _ms(spans_s: dict[str, list[float]] | None, name: str) -> float | None:
    value = median(spans_s[name]) if spans_s else None
    return value * 1e3 if value is not None else None


def _cost_ms(spans_s: dict[str, list[float]] | None, with_: str, without: str) -> float | None:
    return difference(_ms(spans_s, with_), _ms(spans_s, without))
