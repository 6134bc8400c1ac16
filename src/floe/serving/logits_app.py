"""The logit service: prefix and draft in, the most probable next tokens of a big model out.

T = tokens fed, V = vocabulary. Only ids and sizes are logged, never text.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from floe.cloud.wire import (
    MAX_POSITIONS,
    LogitRequest,
    LogitResponse,
    dump_response,
    parse_request,
)
from floe.core.advice import Advice, Candidate
from floe.core.errors import BadRequest, FloeError, NotAllowed
from floe.core.request import Message
from floe.engine.base import Engine, FloatArray, Session

log = logging.getLogger("floe.logits")
Encode = Callable[[Sequence[Message], str | None], list[int]]
"""Prompt ids of either messages or a prompt."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLIENT_GONE = 499


def build_logits_app(
    *, engine: Engine, encode: Encode, key: str | None, max_body_bytes: int = 1_000_000
) -> Starlette:
    """POST /v1/logits (see cloud/wire.py), GET /health, GET /ready.

    With `key`, /v1/logits wants `Authorization: Bearer KEY`. Each call opens an engine session
    on the whole prefix, so only what the engine has not cached is computed, and closes it; a
    client that goes away ends the work. Errors come in OpenAI's shape.
    """
    scorer = Scorer(engine=engine, encode=encode)

    async def logits(request: Request) -> Response:
        request_id = _request_id(request)
        _check_key(request, key)
        asked = parse_request(await _body(request, max_body_bytes))
        answer = await _unless_gone(request, scorer.score(asked))
        if answer is None:
            log.debug("logits %s: client gone", request_id)
            return Response(status_code=_CLIENT_GONE)
        body = dump_response(answer)
        log.debug(
            "logits %s: answer %d bytes, draft %d bytes, %d positions, %d tokens cached, sent %d",
            request_id,
            len(asked.answer),
            len(asked.draft),
            len(answer.positions),
            answer.cached_tokens,
            len(body),
        )
        headers = {"x-request-id": request_id}
        return Response(body, media_type="application/json", headers=headers)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        info = engine.info
        return JSONResponse(
            {"status": "ready", "model": info.name, "tokenizer_digest": info.tokenizer_digest}
        )

    return Starlette(
        routes=[
            Route("/v1/logits", logits, methods=["POST"]),
            Route("/health", health),
            Route("/ready", ready),
        ],
        exception_handlers={
            FloeError: _floe_error,
            HTTPException: _http_error,
            Exception: _any_error,
        },
    )


class Scorer:
    """Advice of one engine for prefixes and drafts."""

    def __init__(self, *, engine: Engine, encode: Encode) -> None:
        self._engine, self._encode = engine, encode

    async def score(self, request: LogitRequest) -> LogitResponse:
        """Advice at the end of `answer` and at every token boundary of `draft` after it.

        The bytes of answer + draft are tokenised as one text and put behind the prompt's ids, so
        no seam is re-encoded (bug-log B47) and nothing is trimmed, here or on the edge (B46). A
        place is left out where this model has no boundary: inside a character, where a token
        crosses the end of the answer, or where the tokenizer does not give the bytes back.

        Raises:
            ContextTooLong, Busy, FloeError: as the engine says.
            BadRequest: the draft has more tokens than one response may carry.
        """
        ids, places = self._exact(request) or self._places(request)
        if not places:
            return self._response((), 0)
        if len(places) > MAX_POSITIONS:
            raise BadRequest(f"draft has more than {MAX_POSITIONS} tokens", param="draft")
        prompt = self._encode(request.messages, request.prompt)
        if not prompt:
            raise BadRequest("the prompt is empty", param="prompt")
        first, last = places[0][0], places[-1][0]
        async with self._session([*prompt, *ids[:last]]) as session:
            rows = [await asyncio.wrap_future(session.submit([*prompt, *ids[:first]]))]
            if last > first:
                rows_TV = await asyncio.wrap_future(session.submit(ids[first:last], every=True))
                rows.extend(rows_TV)
            cached = session.cached_tokens
        positions = tuple(
            self._advice(offset, row_V, request.top_k)
            for (_, offset), row_V in zip(places, rows, strict=True)
        )
        return self._response(positions, cached)

    def _exact(self, request: LogitRequest) -> tuple[list[int], list[tuple[int, int]]] | None:
        """The asker's own tokens and places, when it has this model's tokenizer.

        Raises:
            BadRequest: a piece between two ends that is no token of it.
        """
        if not request.tokenizer_digest or not self._same(request.tokenizer_digest):
            return None
        text, start = request.answer + request.draft, len(request.answer)
        cuts = (0, *request.ends)
        if cuts[-1] != len(text) or start not in cuts:
            raise BadRequest("ends must cover answer and draft and part them", param="ends")
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        if unknown := [p for p in pieces if p not in self._ids]:
            raise BadRequest(
                f"{len(unknown)} pieces between ends are no tokens of this tokenizer", param="ends"
            )
        ids = [self._ids[p] for p in pieces]
        return ids, [(n, end) for n, end in enumerate(cuts) if end >= start]

    def _same(self, tokenizer_digest: str) -> bool:
        return tokenizer_digest == self._engine.info.tokenizer_digest

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Ids by their bytes."""
        engine = self._engine
        return {engine.token_bytes(i): i for i in reversed(range(engine.info.n_vocab))}

    def _places(self, request: LogitRequest) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of answer + draft, and (ids before it, offset in bytes) of every honest place."""
        text = _whole_characters(request.answer + request.draft)
        ids = self._engine.tokenize(text.decode("utf-8"))
        pieces = [self._engine.token_bytes(i) for i in ids]
        if len(text) < len(request.answer) or b"".join(pieces) != text:
            return ids, []
        ends = [0, *accumulate(map(len, pieces))]
        start = len(request.answer)
        return ids, [(n_ids, end) for n_ids, end in enumerate(ends) if end >= start]

    @asynccontextmanager
    async def _session(self, ids: list[int]) -> AsyncIterator[Session]:
        waiting = self._engine.session(prompt=ids, max_tokens=len(ids))
        try:
            session = await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_close_unwanted)
            raise
        try:
            yield session
        finally:
            session.close()

    def _advice(self, offset_bytes: int, log_probs_V: FloatArray, top_k: int) -> Advice:
        k = min(top_k, len(log_probs_V))
        some = np.argpartition(log_probs_V, -k)[-k:]
        order = some[np.argsort(-log_probs_V[some], kind="stable")]
        eos = self._engine.info.eos_ids
        found = (
            Candidate(
                data=b"" if i in eos else self._engine.token_bytes(i),
                log_prob=float(log_probs_V[i]),
                end=i in eos,
            )
            for i in map(int, order)
            if np.isfinite(log_probs_V[i])
        )
        return Advice(
            offset_bytes=offset_bytes, candidates=tuple(c for c in found if c.end or c.data)
        )

    def _response(self, positions: tuple[Advice, ...], cached_tokens: int) -> LogitResponse:
        info = self._engine.info
        return LogitResponse(
            model=info.name,
            tokenizer_digest=info.tokenizer_digest,
            positions=positions,
            cached_tokens=cached_tokens,
        )


def _whole_characters(data: bytes) -> bytes:
    """The longest prefix that is valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data


def _close_unwanted(waiting: Future[Session]) -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().close()


async def _unless_gone(
    request: Request, work: Coroutine[Any, Any, LogitResponse]
) -> LogitResponse | None:
    """What `work` returns, or None when the client left first; the work is cancelled then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise HTTPException(413, f"the body is above {max_bytes} bytes")
    except ClientDisconnect as error:
        raise HTTPException(_CLIENT_GONE, "the client left") from error
    return bytes(body)


def _check_key(request: Request, key: str | None) -> None:
    if key is None:
        return
    given = request.headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(given, f"Bearer {key}".encode()):
        raise NotAllowed("missing or wrong key; send it as Authorization: Bearer KEY")


def _request_id(request: Request) -> str:
    """The caller's id if it is harmless to log, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _error(status: int, message: str, kind: str, param: str | None = None) -> Response:
    error = {"message": message, "type": kind, "param": param, "code": None}
    return JSONResponse({"error": error}, status_code=status)


async def _floe_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, FloeError)
    return _error(error.http_status, error.message, error.kind, error.param)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, "invalid_request_error")


async def _any_error(_: Request, error: Exception) -> Response:
    log.error("logits: %s", type(error).__name__)
    return _error(500, "an error inside the logit service; see its log", "internal_error")
