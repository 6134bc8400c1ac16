"""Goals and plots of `floe bench fusion`."""

from __future__ import annotations

from floe.evaluation.goals import Goal
from floe.evaluation.plot import Lines

GOALS = (
    Goal(field="speedup_exact_rtt80", about="speed over token by token, 80 ms", value=2.5),
    Goal(field="speedup_gated_rtt80", about="the same with the gate", value=3.2),
    Goal(field="rate_vs_slm_rtt80", about="gated speed over the SLM alone", value=0.33),
    Goal(
        field="ttft_ratio_private", value=1.08, at_most=True,
        about="first token of a private request over the bare SLM",
    ),
    Goal(
        field="budget_violations", value=0.01, at_most=True,
        about="tokens later than budget and one step",
    ),
    Goal(
        field="e2e_ratio_dead", value=1.10, at_most=True,
        about="whole answer, cloud black-holed, over the SLM alone",
    ),
    Goal(field="tv_exact", about="total variation", value=0.02, at_most=True),
    Goal(field="gap_recovered", about="gap recovered, pooled", value=1.05),
    Goal(field="gap_recovered_gsm8k", about="gap recovered, GSM8K", value=1.3),
    Goal(field="gap_recovered_mbpp", about="gap recovered, MBPP", value=0.85),
    Goal(field="gap_recovered_gated", about="gap recovered with the gate", value=0.8),
    Goal(field="cloud_token_share", about="share of asked tokens", value=0.5, at_most=True),
    Goal(field="takeovers", about="takeovers that went on", value=1.0),
)  # fmt: skip
_RTTS_MS = (0, 20, 40, 80, 160)
_SHARES = (0, 10, 20, 30, 40, 50, 60, 80, 100)


def _by_rtt(side: str) -> tuple[tuple[float | str, str], ...]:
    return tuple((float(r), f"{side}_tokens_s_rtt{r}") for r in _RTTS_MS)


PLOTS = (
    Lines(
        title="Speed against the round trip",
        unit="tokens/s",
        x_unit="round trip, ms",
        series=(
            ("the SLM alone", _by_rtt("slm")),
            ("speculative, gated", _by_rtt("gated")),
            ("speculative", _by_rtt("exact")),
            ("token by token", _by_rtt("by_token")),
        ),
    ),
    Lines(
        title="Quality against the share of places the cloud is asked about",
        unit="gap recovered",
        x_unit="share of places",
        series=(
            ("gated", tuple((f"quality_share_at_{s}", f"quality_at_{s}") for s in _SHARES)),
            (
                "whole requests routed at random",
                ((0.0, "routed_gap_at_0"), (1.0, "routed_gap_at_100")),
            ),
        ),
    ),
)
