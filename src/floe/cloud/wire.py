"""The logit service's messages: JSON with base64 bytes, strict and bounded.

Request:  {"version": 1, "messages": [{"role", "content"}] | "prompt": str,
           "answer": b64, "draft": b64, "top_k": int,
           "ends": [int], "tokenizer_digest": str}
Response: {"version": 1, "model": str, "tokenizer_digest": str, "cached_tokens": int,
           "positions": [{"offset_bytes": int, "top": [[b64, log_prob, end]]}]}

A candidate is an array, because it is sent for every token; `end` is 0 or 1.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, get_args

from floe.core.advice import Advice, Candidate
from floe.core.errors import BadRequest
from floe.core.request import Message, Role

VERSION = 1
MAX_TOP_K = 1000
MAX_POSITIONS = 512
MAX_MESSAGES = 1000
MAX_TOKEN_BYTES = 1024
MAX_ANSWER_BYTES = 200_000
MAX_RESPONSE_BYTES = 8_000_000
_ROUNDING = 1e-3  # a log-probability of 0 may come out a hair above
_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class LogitRequest:
    """Score the place after `answer`, and the places inside and after `draft`.

    Exactly one of `messages` and `prompt` is set; `answer` is what was already said. `ends` are
    where the asker's tokens end; they bind a service whose tokenizer has this digest.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    answer: bytes = b""
    draft: bytes = b""
    top_k: int = 64
    ends: tuple[int, ...] = ()
    tokenizer_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class LogitResponse:
    """Advice by rising offset (bytes of answer + draft); empty where none is honest."""

    model: str
    tokenizer_digest: str
    positions: tuple[Advice, ...]
    cached_tokens: int = 0


def dump_request(request: LogitRequest) -> bytes:
    """The request as JSON bytes."""
    data: dict[str, Any] = {"version": VERSION, "top_k": request.top_k}
    if request.prompt is not None:
        data["prompt"] = request.prompt
    else:
        data["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    data["answer"] = base64.b64encode(request.answer).decode()
    if request.draft:
        data["draft"] = base64.b64encode(request.draft).decode()
    if request.ends:
        data["ends"] = list(request.ends)
    if request.tokenizer_digest:
        data["tokenizer_digest"] = request.tokenizer_digest
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def parse_request(body: bytes) -> LogitRequest:
    """The request in `body`.

    Raises:
        BadRequest: not this format; `param` names the field.
    """
    data = _object(body, {f.name for f in fields(LogitRequest)} | {"version"})
    _version(data)
    prompt = data.get("prompt")
    if (prompt is None) == (data.get("messages") is None):
        raise BadRequest("give either messages or prompt", param="messages")
    if prompt is not None and not isinstance(prompt, str):
        raise BadRequest("prompt must be a string", param="prompt")
    return LogitRequest(
        messages=() if prompt is not None else _messages(data["messages"]),
        prompt=prompt,
        answer=_bytes(data.get("answer", ""), "answer", MAX_ANSWER_BYTES),
        draft=_bytes(data.get("draft", ""), "draft", MAX_ANSWER_BYTES),
        top_k=_integer(data.get("top_k", 64), "top_k", low=1, high=MAX_TOP_K),
        ends=_ends(data.get("ends", [])),
        tokenizer_digest=_digest(data.get("tokenizer_digest", "")),
    )


def _ends(value: Any) -> tuple[int, ...]:
    items = _list(value, "ends", MAX_ANSWER_BYTES)
    ends = tuple(_integer(i, "ends", low=1, high=2 * MAX_ANSWER_BYTES) for i in items)
    if any(a >= b for a, b in pairwise(ends)):
        raise BadRequest("ends must rise", param="ends")
    return ends


def _digest(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 128:
        raise BadRequest("tokenizer_digest must be a short string", param="tokenizer_digest")
    return value


def dump_response(response: LogitResponse) -> bytes:
    """The response as JSON bytes; log-probabilities to 5 digits."""
    data = {
        "version": VERSION,
        "model": response.model,
        "tokenizer_digest": response.tokenizer_digest,
        "cached_tokens": response.cached_tokens,
        "positions": [
            {"offset_bytes": a.offset_bytes, "top": [_array(c) for c in a.candidates]}
            for a in response.positions
        ],
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("utf-8")


def parse_response(body: bytes) -> LogitResponse:
    """The response in `body`.

    Raises:
        BadRequest: not this format, too many positions or candidates, or a number that is none.
    """
    if len(body) > MAX_RESPONSE_BYTES:
        raise BadRequest(f"the response is above {MAX_RESPONSE_BYTES} bytes")
    data = _object(body, {"version", "model", "tokenizer_digest", "cached_tokens", "positions"})
    _version(data)
    for name in ("model", "tokenizer_digest"):
        if not isinstance(data.get(name), str):
            raise BadRequest(f"{name} must be a string", param=name)
    items = _list(data.get("positions"), "positions", MAX_POSITIONS)
    positions = tuple(_position(item, f"positions[{i}]") for i, item in enumerate(items))
    offsets = [p.offset_bytes for p in positions]
    if offsets != sorted(set(offsets)):
        raise BadRequest("offset_bytes must rise", param="positions")
    return LogitResponse(
        model=data["model"],
        tokenizer_digest=data["tokenizer_digest"],
        positions=positions,
        cached_tokens=_integer(data.get("cached_tokens", 0), "cached_tokens", low=0, high=1 << 31),
    )


def _array(candidate: Candidate) -> list[str | float | int]:
    data = base64.b64encode(candidate.data).decode()
    return [data, round(candidate.log_prob, _DIGITS), int(candidate.end)]


def _position(item: Any, where: str) -> Advice:
    if not isinstance(item, dict) or item.keys() != {"offset_bytes", "top"}:
        raise BadRequest(f"{where} must have offset_bytes and top", param=where)
    top = _list(item["top"], f"{where}.top", MAX_TOP_K)
    return Advice(
        offset_bytes=_integer(
            item["offset_bytes"], f"{where}.offset_bytes", low=0, high=2 * MAX_ANSWER_BYTES
        ),
        candidates=tuple(_candidate(c, f"{where}.top[{i}]") for i, c in enumerate(top)),
    )


def _candidate(item: Any, where: str) -> Candidate:
    if not isinstance(item, list) or len(item) != 3:
        raise BadRequest(f"{where} must be [bytes, log_prob, end]", param=where)
    data, log_prob, end = item
    if isinstance(log_prob, bool) or not isinstance(log_prob, int | float):
        raise BadRequest(f"{where}: log_prob must be a number", param=where)
    if not math.isfinite(log_prob) or log_prob > _ROUNDING:
        raise BadRequest(f"{where}: log_prob must be finite and not above 0", param=where)
    if isinstance(end, bool) or end not in (0, 1):
        raise BadRequest(f"{where}: end must be 0 or 1", param=where)
    raw = _bytes(data, where, MAX_TOKEN_BYTES)
    if bool(end) == bool(raw):
        raise BadRequest(f"{where} must have either bytes or end", param=where)
    return Candidate(data=raw, log_prob=min(float(log_prob), 0.0), end=bool(end))


def _messages(value: Any) -> tuple[Message, ...]:
    items = _list(value, "messages", MAX_MESSAGES)
    if not items:
        raise BadRequest("messages must not be empty", param="messages")
    roles = get_args(Role)
    for i, item in enumerate(items):
        if not isinstance(item, dict) or item.keys() != {"role", "content"}:
            where = f"messages[{i}]"
            raise BadRequest(f"{where} must have role and content", param=where)
        if item["role"] not in roles:
            where = f"messages[{i}].role"
            raise BadRequest(f"{where} must be one of {', '.join(roles)}", param=where)
        if not isinstance(item["content"], str):
            where = f"messages[{i}].content"
            raise BadRequest(f"{where} must be a string", param=where)
    return tuple(Message(role=item["role"], content=item["content"]) for item in items)


def _object(body: bytes, known: set[str]) -> Mapping[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:  # the error itself would quote the text
        raise BadRequest("the body is not valid JSON") from error
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    for name in data:
        if name not in known:
            raise BadRequest(f"unknown field; known: {', '.join(sorted(known))}")
    return data


def _version(data: Mapping[str, Any]) -> None:
    if data.get("version") != VERSION:
        raise BadRequest(
            f"version must be {VERSION}; use the same Floe on both sides", param="version"
        )


def _integer(value: Any, name: str, *, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} must be an integer between {low} and {high}", param=name)
    return value


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise BadRequest(f"{name} must be a list of at most {most} items", param=name)
    return value


def _bytes(value: Any, name: str, most: int) -> bytes:
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadRequest(f"{name} must be base64", param=name) from error
    if len(raw) > most:
        raise BadRequest(f"{name} must be at most {most} bytes", param=name)
    return raw
