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
from floe.core.advice import Advice, Advise, Question
from floe.core.errors import BadRequest, CloudFailed
from floe.core.request import Request

_READ_TIMEOUT_S = 30.0


class LogitCloud:
    """`answer.Cloud` over /v1/logits.

    `url` is the service's root. `on_send(destination, payload, request_id)` is called before
    each send, with the very bytes that are sent; when it raises, nothing is sent. With the SLM's
    `tokenizer_digest` a service of the same tokenizer follows the SLM's own tokens.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None = None,
        top_k: int = 64,
        tokenizer_digest: str = "",
        connect_timeout_ms: float = 500,
        on_send: OnSend,
        client: HttpClient | None = None,
    ) -> None:
        self._top_k, self._tokenizer_digest = top_k, tokenizer_digest
        self._same_tokenizer = bool(tokenizer_digest)  # until the service says otherwise
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

        async def advise(question: Question) -> tuple[Advice, ...]:
            return (await self.score(request, question)).positions

        yield advise

    async def score(self, request: Request, question: Question) -> LogitResponse:
        """Advice after `answer` and at the cloud's token boundaries in `draft`.

        Raises:
            CloudFailed: no answer, or not in the agreed form.
        """
        payload = dump_request(
            LogitRequest(
                messages=request.messages,
                prompt=request.prompt,
                answer=question.answer,
                draft=question.draft,
                ends=question.ends if self._same_tokenizer else (),
                tokenizer_digest=self._tokenizer_digest if self._same_tokenizer else "",
                top_k=self._top_k,
            )
        )
        body = await self._endpoint.post(
            "/v1/logits", payload, request_id=request.id, max_bytes=MAX_RESPONSE_BYTES
        )
        try:
            response = parse_response(body)
            self._same_tokenizer = response.tokenizer_digest == self._tokenizer_digest
            return response
        except BadRequest as error:
            raise CloudFailed(f"the cloud's answer is malformed: {error.message}") from error

    async def close(self) -> None:
        """Close the kept connections."""
        await self._endpoint.close()
