"""Requests with a private value planted somewhere, and what the SLM answers to each."""

from __future__ import annotations

import base64
import html
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from floe.testing.leak_values import BY_MODEL, SAYINGS, VALUES

ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda v: v,
    "full-width": lambda v: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in v),
    "zero-width": lambda v: "\u200b".join(v),
    "percent": lambda v: quote(v, safe=""),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "html": lambda v: "".join(f"&#{ord(c)};" for c in v),
    "escaped": lambda v: "".join(f"\\u{ord(c):04x}" for c in v),
    "json": lambda v: v,  # what is said about it becomes a string of a JSON text
    "upper": lambda v: v.upper() if v.upper().lower() == v.lower() else v,
    "spaced": lambda v: " ".join(v.replace(" ", "")),
    "arabic": lambda v: v.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
}
_ALL_DIGITS = ("card", "ssn", "resident_id", "phone", "mobile_zh")
# A model sees words, not encodings; capitals change keys and passwords into others.
_ONLY: Mapping[str, tuple[str, ...]] = {
    "spaced": ("card", "mobile_zh"),
    "arabic": _ALL_DIGITS,
    "upper": ("email", "iban"),
}
_PLAIN_ONLY = frozenset({"plain", "json"})

FIELDS = (
    *("user", "system", "assistant", "tool", "part", "prompt", "split", "split apart"),
    *("answer", "stop", "label", "metadata", "name", "model", "lora"),
    *("tool_calls", "tools", "image_url", "file", "unknown", "no text", "nothing"),
)
"""Where the value stands; "answer" = only the SLM says it, "nothing" = nowhere."""
FRIENDLY = "Dear friend, your letter is noted and kept with care. Goodbye."
"""What the cloud says; the SLM's answers often begin like it."""
_COMMON = ("user", "system", "assistant", "tool", "part", "prompt")
_PUBLIC = ("What is the capital of France?", "Explain how tides work.", "请解释什么是光合作用。")
_SPLIT_KINDS = ("card", "email", "mobile_zh", "resident_id", "key")
_IN_TEXT = (*_COMMON, "no text", "split", "split apart")
_NEED_WORDS = ("password", "ssn", "resident_id", "aws")  # seen by the words around them
ANSWER_KINDS = ("card", "email", "phone", "iban", "ssn", "key", "aws", "password", "resident_id")
"""What the quick detectors see in an answer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request. `planted` must not leave; `answer` is what the SLM says, `stop_after` the
    number of pieces after which the client goes away (None = never)."""

    number: int
    where: str
    kind: str
    encoding: str
    planted: tuple[str, ...]
    path: str
    body: Mapping[str, Any] = field(repr=False)
    answer: str = field(repr=False)
    stop_after: int | None = None


def cases(n: int, *, seed: int) -> Iterator[Case]:
    """`n` cases; the same for the same seed."""
    rng = random.Random(f"leak {seed}")
    for number in range(n):
        yield _case(number, rng)


def public_text() -> str:
    """Everything in requests and answers that is not a value."""
    said = [s.replace("{}", "\0") for some in SAYINGS.values() for s in some]
    return "\n".join([*said, *_PUBLIC, FRIENDLY, _greeting("\0"), _tail(7)])


def _case(number: int, rng: random.Random) -> Case:
    # common fields more often: they are where the value may leave masked
    where = rng.choice(FIELDS) if number % 3 == 0 else rng.choice(_COMMON)
    kind, encoding = _kind(where, rng), "plain"
    value = VALUES[kind](rng)
    if where not in ("answer", "split", "split apart", "stop", "nothing"):
        encoding = rng.choice([e for e in ENCODINGS if _fits(kind, e)])
    said = rng.choice(SAYINGS[kind]).format(ENCODINGS[encoding](value))
    if encoding == "json":
        said = json.dumps({"text": said, "n": 3})
    planted = () if where == "nothing" else (value,)
    body, path = _body(where, said, value, number, rng)
    if rng.random() < 0.5:
        body["stream"] = True
    if rng.random() < 0.04:
        body["floe"] = {"deadline_ms": 120}
    return Case(
        number=number,
        where=where,
        kind=kind,
        encoding=encoding,
        planted=planted,
        path=path,
        body=body,
        answer=_answer(where, kind, value, rng),
        stop_after=rng.randint(1, 6) if rng.random() < 0.08 and "stream" in body else None,
    )


def _kind(where: str, rng: random.Random) -> str:
    if where in ("split", "split apart"):
        return rng.choice(_SPLIT_KINDS)
    return rng.choice(ANSWER_KINDS if where == "answer" else list(VALUES))


def _fits(kind: str, encoding: str) -> bool:
    if kind in BY_MODEL:
        return encoding in _PLAIN_ONLY
    return kind in _ONLY.get(encoding, (kind,))


def _greeting(value: str) -> str:
    return f"Dear friend, {value} is noted and kept with care."


def _tail(number: int) -> str:
    return f"Please answer briefly. (case-{number})"


def _answer(where: str, kind: str, value: str, rng: random.Random) -> str:
    """What the SLM says: the value again, unless only a model could see it in an answer."""
    if where == "nothing" or (where not in _IN_TEXT and kind not in ANSWER_KINDS):
        return _greeting("the matter")
    said = rng.choice(SAYINGS[kind]).format(value)
    if kind in _NEED_WORDS:
        return f"Noted. {said} Goodbye."
    return rng.choice((_greeting(value), said, f"Noted. {said} Goodbye."))


def _split(value: str, rng: random.Random) -> tuple[str, str]:
    at = rng.randint(len(value) // 3, 2 * len(value) // 3)
    return value[:at], value[at:]


def _body(
    where: str, said: str, value: str, number: int, rng: random.Random
) -> tuple[dict[str, Any], str]:
    """The request's body and its path."""
    tail, public = _tail(number), rng.choice(_PUBLIC)
    common: dict[str, Any] = {"model": "auto", "max_tokens": rng.choice((12, 28, 64))}
    if where == "prompt":
        return {**common, "prompt": f"{said} {tail}"}, "/v1/completions"
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{public} {tail}"}]
    if where in ("user", "no text"):
        messages = [{"role": "user", "content": f"{said} {public} {tail}"}]
    elif where in ("system", "assistant"):
        first = [{"role": "user", "content": "Hello."}] if where == "assistant" else []
        messages = [*first, {"role": where, "content": said}, *messages]
    elif where == "tool":
        result = {"role": "tool", "tool_call_id": "c1", "content": f"result: {said}"}
        messages = [{"role": "user", "content": "Look it up."}, result, *messages]
    elif where == "part":
        parts = [{"type": "text", "text": public}, {"type": "text", "text": said}]
        messages = [{"role": "user", "content": parts}, *messages]
    elif where in ("split", "split apart"):
        a, b = _split(value, rng)
        between = [{"role": "assistant", "content": "Go on."}] if where == "split apart" else []
        last = {"role": "user", "content": f"{b} {tail}"}
        messages = [{"role": "user", "content": f"It begins {a}"}, *between, last]
    body = {**common, "messages": messages}
    body.update(_odd_fields(where, said, value))
    if where in ("name", "tool_calls", "image_url", "file"):
        messages[0] |= _odd_message(where, said, value)
    return body, "/v1/chat/completions"


def _odd_fields(where: str, said: str, value: str) -> dict[str, Any]:
    """Fields beside the messages: ignored, refused, or used here only."""
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": said}}
    fields: dict[str, dict[str, Any]] = {
        "stop": {"stop": [value]},
        "label": {"user": said, "safety_identifier": value},
        "metadata": {"metadata": {"note": said}, "prompt_cache_key": value},
        "model": {"model": value},
        "lora": {"lora": [{"id": value}]},
        "tools": {"tools": [tool]},
        "unknown": {"temprature": said},
        "no text": {"temperature": said},
    }
    return fields.get(where, {})


def _odd_message(where: str, said: str, value: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": said}}
    fields: dict[str, dict[str, Any]] = {
        "name": {"name": value},
        "tool_calls": {"role": "assistant", "content": None, "tool_calls": [call]},
        "image_url": {"content": [{"type": "image_url", "image_url": {"url": value, "alt": said}}]},
        "file": {"content": [{"type": "file", "file": {"filename": html.escape(said)}}]},
    }
    return fields[where]
