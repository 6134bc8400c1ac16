"""Goals and bars of `floe bench decode`."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal

GOALS = (
    Goal(field="ratio_decode", about="decode, Floe over bare llama.cpp", value=0.93),
    Goal(field="ratio_prefill", about="prefill, Floe over bare llama.cpp", value=0.97),
    Goal(
        field="ttft_ratio_mixed", value=0.5, at_most=True,
        about="first token of a second stream, Floe over llama-server",
    ),
    Goal(
        field="throughput_ratio_mixed", value=1.0,
        about="both streams together, Floe over llama-server",
    ),
    Goal(
        field="rss_overhead_mb", value=120, at_most=True,
        about="resident MB over bare llama.cpp",
    ),
    Goal(field="help_cpu_s", about="floe --help, CPU s", value=0.4, at_most=True),
    Goal(field="ready_cpu_s", about="server start to /ready, CPU s", value=3, at_most=True),
)  # fmt: skip
CHARTS = (
    Chart(
        title="Decode, one stream", unit="tokens/s",
        bars=(
            ("bare llama.cpp", "bare_decode_tokens_s"),
            ("Floe, feed", "floe_decode_tokens_s"),
            ("Floe, asyncio", "floe_async_decode_tokens_s"),
        ),
    ),
    Chart(
        title="Prefill", unit="tokens/s",
        bars=(
            ("bare llama.cpp", "bare_prefill_tokens_s"),
            ("Floe", "floe_prefill_tokens_s"),
        ),
    ),
    Chart(
        title="First token of the second of two streams with different adapters", unit="ms",
        bars=(
            ("llama-server", "llama_server_ttft_second_ms"),
            ("Floe", "floe_ttft_second_ms"),
        ),
    ),
    Chart(
        title="Both streams together", unit="tokens/s",
        bars=(
            ("llama-server", "llama_server_mixed_tokens_s"),
            ("Floe", "floe_mixed_tokens_s"),
        ),
    ),
    Chart(
        title="Resident memory, one context of 2048 tokens", unit="MB",
        bars=(("bare llama.cpp", "bare_rss_mb"), ("Floe", "floe_rss_mb")),
    ),
)  # fmt: skip
