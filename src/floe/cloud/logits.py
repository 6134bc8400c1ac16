"""Client of Floe's logit service: one small call for each place in the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from floe.cloud.client import Endpoint, HttpClient, OnSend
from floe.cloud.wire import (
    MAX_RESPONSE_BYTES,
    LogitRequest,
    LogitResponse,
    dump_request,
    parse_response,
)
from floe.core.advice import Advice, Advise
from floe.core.errors import BadRequest, CloudFailed
from floe.core.request import Request

_READ_TIMEOUT_S = 30.0


class LogitCloud:
    """`answer.Cloud` over /v1/logits.

    `url` is the service's root. `on_send(destination, payload, request_id)` is called before
    each send, with the very bytes that are sent; when it raises, nothing is sent.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None = None,
        top_k: int = 64,
        connect_timeout_ms: float = 500,
        on_send: OnSend,
        client: HttpClient | None = None,
    ) -> None:
        self._top_k = top_k
        self._endpoint = Endpoint(
            url=url,
            key=key,
            connect_timeout_ms=connect_timeout_ms,
            read_timeout_s=_READ_TIMEOUT_S,
            on_send=on_send,
            client=client,
        )

    @property
    def name(self) -> str:
        """Host and port of the service."""
        return self._endpoint.destination

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Advise]:
        """Questions about one request; nothing is sent before the first.

        Raises (when asked):
            CloudFailed: no answer, or not in the agreed form.
        """

        async def advise(answer: bytes) -> Advice | None:
            response = await self.score(request, answer)
            at = len(answer)
            return next((p for p in response.positions if p.offset_bytes == at), None)

        yield advise

    async def score(self, request: Request, answer: bytes, draft: bytes = b"") -> LogitResponse:
        """Advice after `answer` and at the cloud's token boundaries in `draft`.

        Raises:
            CloudFailed: no answer, or not in the agreed form.
        """
        payload = dump_request(
            LogitRequest(
                messages=request.messages,
                prompt=request.prompt,
                answer=answer,
                draft=draft,
                top_k=self._top_k,
            )
        )
        body = await self._endpoint.post(
            "/v1/logits", payload, request_id=request.id, max_bytes=MAX_RESPONSE_BYTES
        )
        try:
            return parse_response(body)
        except BadRequest as error:
            raise CloudFailed(f"the cloud's answer is malformed: {error.message}") from error

    async def close(self) -> None:
        """Close the kept connections."""
        await self._endpoint.close()
