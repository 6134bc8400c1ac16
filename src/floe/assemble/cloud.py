"""The cloud's client."""

from __future__ import annotations

from floe.answer import Cloud
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.config import Secrets
from floe.core.sections import CloudConfig, FusionConfig
from floe.privacy.ledger import EgressLedger
from floe.privacy.masked import egress_reason


def open_cloud(
    config: CloudConfig,
    secrets: Secrets,
    ledger: EgressLedger | None,
    *,
    tokenizer_digest: str = "",
    fusion: FusionConfig | None = None,
) -> Cloud | None:
    """The client for the configured endpoint; None when there is none.

    `fusion` says how long tokens wait: questions are tried again no longer than that.
    """
    waits = fusion or FusionConfig()

    def on_send(destination: str, payload: bytes, request_id: str) -> None:
        if ledger is not None:
            ledger.record(destination, payload, egress_reason(), request_id)

    if config.kind == "none":
        return None
    if config.kind == "floe":
        return LogitCloud(
            url=config.url,
            key=secrets.cloud_key,
            top_k=config.top_k,
            tokenizer_digest=tokenizer_digest,
            connect_timeout_ms=config.connect_timeout_ms,
            budget_ms=waits.token_budget_ms,
            first_budget_ms=waits.first_token_budget_ms,
            on_send=on_send,
        )
    return OpenAICloud(
        url=config.url,
        key=secrets.cloud_key,
        model=config.model,
        connect_timeout_ms=config.connect_timeout_ms,
        budget_ms=waits.token_budget_ms,
        first_budget_ms=waits.first_token_budget_ms,
        continues=config.continues,
        on_send=on_send,
    )
