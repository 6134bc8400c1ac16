"""What became of a request: what the router and the cache learn from."""

from __future__ import annotations

from dataclasses import dataclass

from floe.core.route import Route


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One served request. None = not known.

    `wait_ms` is how long it waited for its adapters, `first_token_ms` and `total_ms` count from
    its arrival. `agreement` is the mean log-probability (nats a token) that the LLM gives to
    what the SLM alone would have drawn, over the `agreement_tokens` places it spoke about. `topic`
    is what was routed by; it never leaves the process.
    """

    request_id: str
    tenant: str
    route: Route
    topic: str
    wait_ms: float
    first_token_ms: float | None
    total_ms: float
    completion_tokens: int
    agreement: float | None = None
    agreement_tokens: int = 0
