"""Client of Floe's logit service: one small call for each place in the answer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from floe.cloud.client import Endpoint, HttpClient, OnSend
from floe.cloud.counters import CloudCounters
from floe.cloud.wire import (
    MAX_RESPONSE_BYTES,
    LogitRequest,
    LogitResponse,
    dump_request,
    parse_response,
)
from floe.core.advice import FOREIGN, Advice, Advise, Question
from floe.core.errors import BadRequest, CloudFailed
from floe.core.request import Request

_READ_TIMEOUT_S = 30.0


class LogitCloud:
    """`answer.Cloud` over /v1/logits.

    `url` is the service's root. `on_send(destination, payload, request_id)` is called before
    each send, with the very bytes that are sent; when it raises, nothing is sent. With the SLM's
    `tokenizer_digest` a service of the same tokenizer follows the SLM's own tokens. A question
    is tried again at most `budget_ms` (the first of an answer: `first_budget_ms`) after it began.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None = None,
        top_k: int = 64,
        tokenizer_digest: str = "",
        connect_timeout_ms: float = 500,
        budget_ms: float = 250,
        first_budget_ms: float = 4_000,
        on_send: OnSend,
        client: HttpClient | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._budget_ms, self._first_budget_ms = budget_ms, first_budget_ms
        self._top_k, self._tokenizer_digest = top_k, tokenizer_digest
        self._same_tokenizer = bool(tokenizer_digest)  # until the service says otherwise
        self._endpoint = Endpoint(
            url=url,
            key=key,
            connect_timeout_ms=connect_timeout_ms,
            read_timeout_s=_READ_TIMEOUT_S,
            on_send=on_send,
            client=client,
            rng=rng,
        )

    def counters(self) -> CloudCounters:
        """What the client has counted so far."""
        return self._endpoint.counters()

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
        # a masked answer is no sequence of the SLM's tokens, so it comes without their ends
        exact = self._same_tokenizer and (bool(question.ends) or not question.text)
        payload = dump_request(
            LogitRequest(
                messages=request.messages,
                prompt=request.prompt,
                answer=question.answer,
                draft=question.draft,
                ends=question.ends if exact else (),
                tokenizer_digest=self._tokenizer_digest if exact else "",
                top_k=self._top_k,
            )
        )
        response = await self._endpoint.post(
            "/v1/logits",
            payload,
            request_id=request.id,
            max_bytes=MAX_RESPONSE_BYTES,
            within_ms=self._budget_ms if question.answer else self._first_budget_ms,
            parse=_parsed,
        )
        self._same_tokenizer = response.tokenizer_digest == self._tokenizer_digest
        return response if self._same_tokenizer else self._named(response)

    def _named(self, response: LogitResponse) -> LogitResponse:
        """The response with another tokenizer's digest on every advice, for the alignment."""
        if not self._tokenizer_digest:
            return response  # the SLM's own is not known, so neither is whether it is another
        name = response.tokenizer_digest or FOREIGN
        positions = tuple(replace(a, tokenizer=name) for a in response.positions)
        return replace(response, positions=positions)

    async def close(self) -> None:
        """Close the kept connections."""
        await self._endpoint.close()


def _parsed(body: bytes) -> LogitResponse:
    try:
        return parse_response(body)
    except BadRequest as error:
        raise CloudFailed(f"the cloud's answer is malformed: {error.message}") from error
