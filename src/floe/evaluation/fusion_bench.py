"""`floe bench fusion`: two models, one of them far away, beside what one would do instead."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from floe.assemble import edge, open_engine
from floe.core.config import Config, Secrets, home
from floe.core.request import Request
from floe.core.sections import CloudConfig, ModelConfig
from floe.engine.llamacpp import LlamaCppEngine
from floe.evaluation.fusion_parts import (
    COMPUTE_MS,
    Side,
    Tally,
    dead_midway,
    dead_ratios,
    exactness,
    first_tokens,
    in_held_time,
    late_share,
    tally,
    warm,
)
from floe.evaluation.fusion_quality import quality_figures
from floe.evaluation.fusion_runs import PRIVATE, PROMPTS, Pair, asked
from floe.evaluation.fusion_setup import (
    CLOUD_SHARE,
    UNLIMITED_MS,
    WEIGHT,
    Fuses,
    open_pair,
    speculative,
)
from floe.evaluation.fusion_takeovers import takeovers
from floe.evaluation.machine import versions
from floe.evaluation.netem import Network
from floe.fusion.align import Alignment
from floe.fusion.generate import Fuser

Say = Callable[[str], None]
Figures = dict[str, Any]
RTT_MS = 80
RTTS_MS = (0, 20, 40, 80, 160)
SEED = 11


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    prompts: int
    max_tokens: int
    repeats: int
    rtts_ms: tuple[int, ...]
    first_tokens: int
    stalled: int
    dead: int
    answer_tokens: int
    positions: int
    seeds: int


QUICK = Plan(
    prompts=2, max_tokens=24, repeats=1, rtts_ms=(RTT_MS,), first_tokens=8, stalled=2, dead=2,
    answer_tokens=128, positions=4, seeds=12,
)  # fmt: skip
FULL = Plan(
    prompts=3, max_tokens=48, repeats=3, rtts_ms=RTTS_MS, first_tokens=24, stalled=12, dead=4,
    answer_tokens=256, positions=24, seeds=120,
)  # fmt: skip


def fusion_benchmark(full: bool, say: Say) -> Figures:
    """Issue 3's figures; a field that was not measured is None."""
    plan = FULL if full else QUICK
    with open_pair() as (pair, engine, fuses):
        figures: Figures = {
            "slm": pair.edge.info.name,
            "slm_digest": pair.edge.info.digest,
            "llm": pair.cloud.info.name,
            "llm_digest": pair.cloud.info.digest,
            "threads_each": 1,
            "seed": SEED,
            "repeats": plan.repeats,
            "prompts": plan.prompts,
            "max_tokens": plan.max_tokens,
            "temperatures": "0 and 0.7",
            "compute_ms": COMPUTE_MS,
            "weight": "learned" if fuses.learned is not None else f"{WEIGHT:g}",
            **_rates(pair, fuses, plan, say),
            **_ends(pair, fuses, plan, say),
            **_exactness(pair, plan, say),
            **quality_figures(fuses.learned, cloud_share=CLOUD_SHARE),
        }
        build = engine.library.layout.build
    figures |= _first_tokens(plan, say)
    return {**_unmeasured(figures), **versions(llama_build=build)}


FIELDS = (
    "speedup_exact_rtt80", "speedup_gated_rtt80", "rate_vs_slm_rtt80", "ttft_ratio_private",
    "budget_violations", "e2e_ratio_dead", "tv_exact", "gap_recovered", "gap_recovered_gsm8k",
    "gap_recovered_mbpp", "gap_recovered_gated", "gap_recovered_top20", "gap_recovered_adapter",
    "cloud_token_share", "bytes_per_token_up", "bytes_per_token_down", "takeovers",
)  # fmt: skip


def _unmeasured(figures: Figures) -> Figures:
    return {**dict.fromkeys(FIELDS), **figures}


def _requests(plan: Plan, repeat: int) -> list[Request]:
    """Greedy and sampled requests; another seed in each repeat."""
    return [
        asked(prompt, max_tokens=plan.max_tokens, temperature=t, seed=SEED + 100 * repeat + n)
        for n, prompt in enumerate(PROMPTS[: plan.prompts])
        for t in (0.0, 0.7)
    ]


def _rates(pair: Pair, fuses: Fuses, plan: Plan, say: Say) -> Figures:
    """Tokens per second by side and round trip, medians over repeats of paired ratios."""
    sides = fuses.sides()
    pooled: dict[int, list[dict[str, Tally]]] = {rtt: [] for rtt in plan.rtts_ms}
    for repeat in range(plan.repeats):
        requests = _requests(plan, repeat)
        say(f"rates, repeat {repeat + 1} of {plan.repeats}")
        in_held_time(partial(warm, pair, sides, requests))
        pooled[RTT_MS].append(_tallied(pair, sides, requests, RTT_MS, shared=False))
        for rtt_ms in plan.rtts_ms if repeat == 0 else ():
            if rtt_ms != RTT_MS:
                pooled[rtt_ms].append(_tallied(pair, sides, requests[:4], rtt_ms, shared=False))
    shared = [_tallied(pair, sides, _requests(plan, 0)[:2], RTT_MS, shared=True)]
    out: Figures = {}
    for rtt_ms, tallies in pooled.items():
        out |= _speeds(tallies, f"_rtt{rtt_ms}")
    out |= _speeds(shared, f"_rtt{RTT_MS}_shared")
    out |= _traffic(pooled[RTT_MS])
    return out | _alternatives(out)


def _tallied(
    pair: Pair, sides: Sequence[Side], requests: Sequence[Request], rtt_ms: int, *, shared: bool
) -> dict[str, Tally]:
    network = Network(rtt_ms=rtt_ms)
    found: dict[str, Tally] = in_held_time(
        lambda: tally(pair, sides, requests, network, shared=shared)
    )
    return found


def _speeds(tallies: Sequence[dict[str, Tally]], end: str) -> Figures:
    """Tokens/s of every side and the ratios of the issue's table."""
    out: Figures = {}
    for name in ("by_token", "exact", "gated", "slm"):
        out[f"{name}_tokens_s{end}"] = _median(t[name].tokens_s for t in tallies if name in t)
    for field, above, below in (
        ("speedup_exact", "exact", "by_token"),
        ("speedup_gated", "gated", "by_token"),
        ("rate_vs_slm", "gated", "slm"),
        ("rate_exact_vs_slm", "exact", "slm"),
    ):
        out[f"{field}{end}"] = _median(
            _over(t[above].tokens_s, t[below].tokens_s) for t in tallies if above in t
        )
    return out


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _median(values: Any) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _traffic(tallies: Sequence[dict[str, Tally]]) -> Figures:
    """Shares, bytes, questions and steps a token; of the gated side where there is one."""
    out: Figures = {}
    for side, end in (("exact", "_exact"), ("gated", "")):
        all_of = [t[side] for t in tallies if side in t]
        tokens = sum(t.tokens for t in all_of)
        for field, total in (
            ("cloud_token_share", sum(t.asked_tokens for t in all_of)),
            ("corrected_share", sum(t.corrected_tokens for t in all_of)),
            ("questions_per_token", sum(t.questions for t in all_of)),
            ("replay_misses_per_token", sum(t.misses for t in all_of)),
            ("steps_per_token", sum(t.steps for t in all_of)),
            ("bytes_per_token_up", sum(t.up_bytes for t in all_of)),
            ("bytes_per_token_down", sum(t.down_bytes for t in all_of)),
        ):
            out[f"{field}{end}"] = total / tokens if tokens else None
    return out


def _alternatives(out: Figures) -> Figures:
    """What one would do instead: the cloud's own stream, or each request whole to one of both.

    Computed, not measured: a stream of the cloud is one round trip and then `COMPUTE_MS` a token.
    """
    cloud = 1000.0 / COMPUTE_MS
    slm, share = out.get(f"slm_tokens_s_rtt{RTT_MS}"), out.get("cloud_token_share")
    share = out.get("cloud_token_share_exact") if share is None else share
    routed = 1.0 / (share / cloud + (1.0 - share) / slm) if slm and share is not None else None
    return {
        "cloud_only_tokens_s_modelled": cloud,
        "routed_tokens_s_modelled": routed,
        "routed_gap_recovered_modelled": share,
        "routed_gap_at_0": 0.0,
        "routed_gap_at_100": 1.0,
    }


def _ends(pair: Pair, fuses: Fuses, plan: Plan, say: Say) -> Figures:
    """What a bad, dead or ending cloud does to a stream."""
    say("stalls, a black hole, ends at every token")
    budget_ms = float(Config().fusion.token_budget_ms)
    requests = [
        asked(PROMPTS[n % 2], max_tokens=32, temperature=0.7, seed=SEED + n)
        for n in range(plan.stalled)
    ]
    alone = _tallied(pair, [("slm", fuses.speculative, False)], requests[:2], 0, shared=False)
    step_ms = 1000.0 / (alone["slm"].tokens_s or 1.0)
    late, total = in_held_time(
        lambda: late_share(pair, fuses.bounded, requests, budget_ms=budget_ms, step_ms=step_ms)
    )
    longer = [
        asked(PROMPTS[-1], max_tokens=plan.answer_tokens, temperature=0.7, seed=SEED + n)
        for n in range(plan.dead)
    ]
    dead = in_held_time(lambda: dead_ratios(pair, fuses.bounded, fuses.hasty, longer))
    midway = in_held_time(lambda: dead_midway(pair, fuses.bounded, longer[:-1]))
    later = [d / a for d, a in zip(dead["later"], dead["later_alone"], strict=True)]
    found = in_held_time(
        lambda: takeovers(
            pair,
            fuses.bounded,
            asked(PROMPTS[0], max_tokens=plan.positions + 8, temperature=0.0, seed=SEED),
            positions=plan.positions,
        )
    )
    return {
        "slm_step_ms": step_ms,
        "budget_ms": budget_ms,
        "budget_violations": late / total if total else None,
        "budget_tokens": total,
        "e2e_ratio_dead": _median(later),
        "e2e_ratio_dead_worst": max(later),
        "e2e_ratio_dead_first": dead["first"][0] / dead["first_alone"][0],
        "e2e_ratio_dead_midway": _median(midway),
        "dead_requests": plan.dead,
        "takeovers_real_pair": found.continued / found.tried,
        "takeovers_real_pair_tried": found.tried,
    }


def _exactness(pair: Pair, plan: Plan, say: Say) -> Figures:
    say("exactness")
    engine = pair.edge
    assert isinstance(engine, LlamaCppEngine)
    plain = Alignment(
        token_bytes=[engine.token_bytes(t) for t in range(engine.info.n_vocab)],
        eos_ids=engine.info.eos_ids,
    )
    by_token = Fuser(
        weight=WEIGHT,
        budget_ms=UNLIMITED_MS,
        first_budget_ms=UNLIMITED_MS,
        alignment=plain,
        eos_ids=engine.info.eos_ids,
        token_bytes=engine.token_bytes,
    )
    fast = speculative(engine, plain, WEIGHT, UNLIMITED_MS, UNLIMITED_MS)
    request = asked(PROMPTS[-1], max_tokens=8, temperature=1.0, seed=0)
    seeds = [SEED + n for n in range(plan.seeds)]
    twin = open_engine(ModelConfig(threads=1, max_contexts=1), home=home())
    try:
        found = in_held_time(lambda: exactness(pair, twin, fast, by_token, request, seeds=seeds))
    finally:
        twin.close()
    return {
        "tv_exact": found["coupled"],
        "tv_exact_seeds": plan.seeds,
        "tv_exact_independent": found["independent"],
        "tv_exact_independent_noise": found["noise"],
    }


def _first_tokens(plan: Plan, say: Say) -> Figures:
    say("first tokens of private requests")
    config = replace(
        Config(),
        model=ModelConfig(threads=1),
        cloud=CloudConfig(kind="floe", url="http://127.0.0.1:9"),
    )
    with tempfile.TemporaryDirectory(prefix="floe-bench-") as name:
        folder = Path(name)
        (folder / "models").symlink_to((home() / "models").resolve())
        with edge(config, Secrets(), home=folder) as whole:
            requests = [
                asked(f"Case {7 * n + 13}. {PRIVATE}", max_tokens=4, temperature=0.0, seed=n)
                for n in range(plan.first_tokens + 2)
            ]
            ours, bare = in_held_time(lambda: first_tokens(whole.parts, requests))
    ratio = statistics.median(ours[1:]) / statistics.median(bare[1:])
    return {
        "ttft_ratio_private": ratio,
        "ttft_private_ms": 1000 * statistics.median(ours[1:]),
        "ttft_bare_ms": 1000 * statistics.median(bare[1:]),
        "ttft_pairs": len(ours) - 1,
    }
