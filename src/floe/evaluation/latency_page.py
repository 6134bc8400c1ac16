"""Bars of `floe bench latency`."""

from __future__ import annotations

from floe.evaluation.goals import Chart

_PARTS = ("attention", "ffn", "head", "sampling", "embedding", "rest")


def _chart(phase: str, title: str) -> Chart:
    return Chart(
        title=title, unit="ms", bars=tuple((part, f"{phase}_{part}_ms") for part in _PARTS)
    )


CHARTS = (
    _chart("decode", "A decoded token, part by part"),
    _chart("prefill", "A prompt of 64 tokens, part by part"),
    Chart(
        title="The model of random weights beside the served file", unit="ms",
        bars=(("random weights", "decode_ms"), ("served", "decode_served_ms")),
    ),
)  # fmt: skip
