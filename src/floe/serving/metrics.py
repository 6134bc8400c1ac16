"""Figures for Prometheus, in a registry of the app's own. Labels come from short fixed lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from floe.core.config_rules import DEFAULT
from floe.core.token import Finished, Started
from floe.serving.service import Figure, Spread, no_figures

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_GONE = 499
"""The status under which a request is counted whose client left before the answer began."""

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NEXT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ROUTES = {
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"),
    *("/v1/adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/feedback"),
    *("/health", "/ready", "/version", "/metrics"),
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,80}")
MOST_ADAPTERS = 512
"""Adapters with series of their own; those that come later are counted as "other"."""


class Metrics:
    """Counts what the door sees; `in_flight`, `counters` and `figures` are asked at scrape time.

    Series by tenant are there for "default" and for `tenants`, nobody else; those by adapter for
    what `names` gives, which is asked when a name comes for the first time.
    """

    def __init__(
        self,
        *,
        in_flight: Callable[[], int],
        counters: Callable[[], Mapping[str, float]],
        figures: Callable[[], Sequence[Figure | Spread]] = no_figures,
        tenants: Collection[str] = (),
        names: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._registry = CollectorRegistry()
        self._names = names
        self._known: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"floe_{name}", text, labels, registry=self._registry)

        self._requests = counter("requests", "HTTP requests", "route", "status")
        self._tokens = counter("tokens", "Tokens answered", "origin")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self._verdicts = counter("verdicts", "Privacy verdicts", "action")
        self._adapters = counter("adapter_requests", "Requests answered with it", "adapter")
        self._cached = counter(
            "prefix_cache_hit_tokens", "Prompt tokens taken from the KV prefix cache", "adapter"
        )
        self._looked_up = counter(
            "prefix_cache_prompt_tokens", "Prompt tokens that might have been there", "adapter"
        )
        self._cancelled = counter("requests_cancelled", "Answers that the client left")
        self._of_tenants = _OfTenants(counter, tenants, self._histogram)
        self._first = self._histogram("first_token_seconds", "Request to first token", _FIRST_S)
        self._next = self._histogram("token_seconds", "Token to token", _NEXT_S)
        gauge = Gauge("floe_requests_in_flight", "Answers at work", registry=self._registry)
        gauge.set_function(in_flight)
        for origin in ("edge", "fused", "cloud"):
            self._tokens.labels(origin)
        for action in ("local", "mask", "allow"):
            self._verdicts.labels(action)
        self._registry.register(_Outside(counters, figures))

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"floe_{name}", text, labels, buckets=buckets, registry=self._registry)

    def request(self, path: str, status: int) -> None:
        """Count a request; a path that is not one of ours is "other"."""
        route = "/v1/models/{id}" if path.startswith("/v1/models/") else path
        known = route in _ROUTES or route == "/v1/models/{id}"
        self._requests.labels(route if known else "other", str(status)).inc()

    def started(self, event: Started, *, tenant: str) -> None:
        """Count a verdict, a prompt and the adapters of a route."""
        self._verdicts.labels(event.verdict.action).inc()
        self._prompt_tokens.inc(event.prompt_tokens)
        self._of_tenants.started(tenant, event.prompt_tokens)
        for share in event.route.shares:
            self._adapters.labels(self._label(share.name)).inc()

    def finished(self, started: Started, event: Finished, *, tenant: str) -> None:
        """Count what of the prompt came from the prefix cache (bug-log A73), and an answer."""
        self._of_tenants.finished(tenant)
        if started.cached:
            return  # given again from memory: the engine was not asked
        shares = started.route.shares
        name = "base" if not shares else "mix" if len(shares) > 1 else self._label(shares[0].name)
        self._looked_up.labels(name).inc(started.prompt_tokens)
        self._cached.labels(name).inc(event.cached_tokens)

    def token(self, origin: str, *, waited_s: float, first: bool, tenant: str) -> None:
        """Count a token and how long it was waited for."""
        self._tokens.labels(origin).inc()
        (self._first if first else self._next).observe(waited_s)
        self._of_tenants.token(tenant, waited_s=waited_s, first=first)

    def _label(self, adapter: str) -> str:
        if adapter not in self._known:
            if len(self._known) >= MOST_ADAPTERS or adapter not in self._names():
                return "other"
            self._known.add(adapter)
        return adapter

    def cancelled(self) -> None:
        """Count an answer whose client left before its end (bug-log A58, A61)."""
        self._cancelled.inc()

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _OfTenants:
    """Series of each tenant: they exist from the start, and no others ever do."""

    def __init__(
        self,
        counter: Callable[..., Counter],
        tenants: Collection[str],
        histogram: Callable[..., Histogram],
    ) -> None:
        names = {DEFAULT, *tenants}
        started = counter("tenant_requests", "Requests begun", "tenant")
        finished = counter("tenant_answers", "Answers that came to their end", "tenant")
        prompt = counter("tenant_prompt_tokens", "Tokens of prompts", "tenant")
        tokens = counter("tenant_tokens", "Tokens answered", "tenant")
        first = histogram(
            "tenant_first_token_seconds", "Request to first token", _FIRST_S, "tenant"
        )
        self._started = {name: started.labels(name) for name in names}
        self._finished = {name: finished.labels(name) for name in names}
        self._prompt = {name: prompt.labels(name) for name in names}
        self._tokens = {name: tokens.labels(name) for name in names}
        self._first = {name: first.labels(name) for name in names}

    def started(self, tenant: str, prompt_tokens: int) -> None:
        self._started[tenant].inc()
        self._prompt[tenant].inc(prompt_tokens)

    def finished(self, tenant: str) -> None:
        self._finished[tenant].inc()

    def token(self, tenant: str, *, waited_s: float, first: bool) -> None:
        self._tokens[tenant].inc()
        if first:
            self._first[tenant].observe(waited_s)


class _Outside(Collector):
    """Figures that other parts count (bug-log A28: resident, pinned, active, hits, ...)."""

    def __init__(
        self,
        counters: Callable[[], Mapping[str, float]],
        figures: Callable[[], Sequence[Figure | Spread]],
    ) -> None:
        self._counters, self._figures = counters, figures

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for name, value in sorted(self._counters().items()):
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"floe_{_checked(name)}", name.replace("_", " "), value=value)
        yield from _families(self._figures())


def _families(figures: Sequence[Figure | Spread]) -> Iterable[Metric]:
    """Each name once, with all its label values."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for one in figures:
        text = one.name.replace("_", " ")
        if isinstance(one, Spread):
            steps = [*zip(map(str, map(float, one.bounds)), one.counts, strict=True)]
            histogram = HistogramMetricFamily(f"floe_{_checked(one.name)}", text)
            histogram.add_metric([], buckets=[*steps, ("+Inf", one.n)], sum_value=one.total)
            yield histogram
            continue
        if one.name not in families:
            kind = CounterMetricFamily if one.name.endswith("_total") else GaugeMetricFamily
            families[one.name] = kind(f"floe_{_checked(one.name)}", text, labels=sorted(one.labels))
        families[one.name].add_metric([one.labels[k] for k in sorted(one.labels)], one.value)
    yield from families.values()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a counter's name must be lower case letters, digits, underscores")
    return name
