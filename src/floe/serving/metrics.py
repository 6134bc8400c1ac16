"""Figures for Prometheus, in a registry of the app's own. Labels come from short fixed lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from floe.core.token import Started

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_GONE = 499
"""The status under which a request is counted whose client left before the answer began."""

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NEXT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ROUTES = {
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"),
    *("/health", "/ready", "/version", "/metrics"),
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,80}")


class Metrics:
    """Counts what the door sees; `in_flight` and `counters` are asked at scrape time."""

    def __init__(
        self, *, in_flight: Callable[[], int], counters: Callable[[], Mapping[str, float]]
    ) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"floe_{name}", text, labels, registry=self._registry)

        self._requests = counter("requests", "HTTP requests", "route", "status")
        self._tokens = counter("tokens", "Tokens answered", "origin")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self._verdicts = counter("verdicts", "Privacy verdicts", "action")
        self._adapters = counter("adapter_requests", "Requests answered with it", "adapter")
        self._cancelled = counter("requests_cancelled", "Answers that the client left")
        self._first = self._histogram("first_token_seconds", "Request to first token", _FIRST_S)
        self._next = self._histogram("token_seconds", "Token to token", _NEXT_S)
        gauge = Gauge("floe_requests_in_flight", "Answers at work", registry=self._registry)
        gauge.set_function(in_flight)
        for origin in ("edge", "fused", "cloud"):
            self._tokens.labels(origin)
        for action in ("local", "mask", "allow"):
            self._verdicts.labels(action)
        self._registry.register(_Outside(counters))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"floe_{name}", text, buckets=buckets, registry=self._registry)

    def request(self, path: str, status: int) -> None:
        """Count a request; a path that is not one of ours is "other"."""
        route = "/v1/models/{id}" if path.startswith("/v1/models/") else path
        known = route in _ROUTES or route == "/v1/models/{id}"
        self._requests.labels(route if known else "other", str(status)).inc()

    def started(self, event: Started, *, known: Collection[str]) -> None:
        """Count a verdict, a prompt and the adapters of a route, by names of the known list."""
        self._verdicts.labels(event.verdict.action).inc()
        self._prompt_tokens.inc(event.prompt_tokens)
        for share in event.route.shares:
            self._adapters.labels(share.name if share.name in known else "other").inc()

    def token(self, origin: str, *, waited_s: float, first: bool) -> None:
        """Count a token and how long it was waited for."""
        self._tokens.labels(origin).inc()
        (self._first if first else self._next).observe(waited_s)

    def cancelled(self) -> None:
        """Count an answer whose client left before its end (bug-log A58, A61)."""
        self._cancelled.inc()

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Outside(Collector):
    """Figures that other parts count (bug-log A28: resident, pinned, active, hits, ...)."""

    def __init__(self, counters: Callable[[], Mapping[str, float]]) -> None:
        self._counters = counters

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for name, value in sorted(self._counters().items()):
            if not _NAME.fullmatch(name):
                raise ValueError("a counter's name must be lower case letters, digits, underscores")
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"floe_{name}", name.replace("_", " "), value=value)
