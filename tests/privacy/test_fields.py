"""Every string of a request either went through the gate or never leaves; found by reflection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import httpx
import pytest

from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.advice import Question
from floe.core.errors import BadRequest, CloudFailed
from floe.core.request import Message, Request
from floe.core.verdict import Finding, Verdict
from floe.privacy.masked import for_cloud
from floe.serving.ask import chat_ask, completion_ask
from floe.serving.unsupported import IGNORED

_numbers = itertools.count(1)


def marker() -> str:
    return f"marker{next(_numbers):05d}x"


def filled(hint: Any) -> Any:
    """A value of this type with a marker of its own in every string, also in fields to come."""
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        values = {f.name: filled(hints[f.name]) for f in dataclasses.fields(hint)}
        return typing.cast("type[Any]", hint)(**values)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return (filled(arguments[0]), filled(arguments[0]))
    if origin is typing.Literal:
        return "user" if "user" in arguments else arguments[0]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {marker(): filled(arguments[1])}
    if arguments:  # X | None
        return filled(next(a for a in arguments if a is not type(None)))
    return {str: marker, int: lambda: 5, float: lambda: 0.5, bool: lambda: True}[hint]()


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from strings(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from strings(key)
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


async def sent_by(kind: str, request: Request, wrap: Any = None) -> list[bytes]:
    """Everything that a client sends about a request: heads and bodies."""
    out: list[bytes] = []

    def answer(http: httpx.Request) -> httpx.Response:
        out.append(str(http.url).encode() + b"\n" + str(http.headers).encode())
        out.append(http.content)
        return httpx.Response(400)

    options: dict[str, Any] = {
        "url": "http://127.0.0.1",
        "on_send": lambda *_: None,
        "client": httpx.AsyncClient(transport=httpx.MockTransport(answer)),
    }
    cloud = LogitCloud(**options) if kind == "floe" else OpenAICloud(model="m", **options)
    async with cloud.open(request) as opened:
        advise = wrap(opened) if wrap else opened
        for question in (Question(answer=b""), Question(answer=b"so", draft=b" it")):
            with contextlib.suppress(CloudFailed):  # the status 400
                await advise(question)
    await cloud.close()
    return out


def whole(request: Request, *, form: str) -> Request:
    return dataclasses.replace(
        request, **({"messages": ()} if form == "prompt" else {"prompt": None})
    )


@pytest.mark.parametrize("form", ["messages", "prompt"])
@pytest.mark.parametrize("kind", ["floe", "openai"])
async def test_every_string_that_leaves_was_inspected(kind: str, form: str) -> None:
    request = whole(filled(Request), form=form)
    inspected = {text for _, text in request.texts()}
    sent = b"\n".join(await sent_by(kind, request))
    never = [s for s in strings(request) if s.startswith("marker") and s not in inspected]
    assert len(never) >= 5  # model, lora, stop, tenant, id
    left = [s for s in never if s.encode() in sent and s != request.id]
    assert left == []
    if sent:
        assert all(text.encode() in sent for text in inspected)
    else:  # a chat endpoint would answer a prompt instead of continuing it
        assert (kind, form) == ("openai", "prompt")


@pytest.mark.parametrize("kind", ["floe", "openai"])
async def test_a_masked_request_sends_masked_texts_only(kind: str) -> None:
    request = whole(filled(Request), form="messages")
    findings = tuple(
        Finding(entity="PERSON", field=f, start=0, end=len(t), score=1.0, recogniser="t")
        for f, t in request.texts()
    )
    verdict = Verdict(action="mask", reason="", findings=findings)
    masked, wrap = for_cloud(request, verdict)
    assert all(text.startswith("[PERSON_") for _, text in masked.texts())
    sent = b"\n".join(await sent_by(kind, masked, wrap))
    assert b"[PERSON_1]" in sent
    assert not any(text.encode() in sent for _, text in request.texts())


def test_wire_bodies_hold_nothing_but_known_keys() -> None:
    """A new field on the wire must be thought about here."""
    request = whole(filled(Request), form="messages")
    floe = json.loads(asyncio.run(sent_by("floe", request))[1])
    openai = json.loads(asyncio.run(sent_by("openai", request))[1])
    assert floe.keys() == {"version", "top_k", "messages", "answer"}
    assert openai.keys() == {
        *("model", "messages", "max_tokens", "temperature", "stream"),
        *("logprobs", "top_logprobs"),
    }
    assert all(m.keys() == {"role", "content"} for m in floe["messages"] + openai["messages"])
    assert base64.b64decode(floe["answer"]) == b""


CHAT = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
SECRET = "ada.king@example.org"


def chat(**fields: Any) -> Request:
    return chat_ask({**CHAT, **fields}, request_id="r", default_max_tokens=5).request


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_of_every_role_is_inspected(role: str) -> None:
    message: dict[str, Any] = {"role": role, "content": SECRET}
    assert SECRET in dict(chat(messages=[message]).texts()).values()
    parts = [{"type": "text", "text": "see "}, {"type": "text", "text": SECRET}]
    joined = dict(chat(messages=[{**message, "content": parts}]).texts())["messages[0].content"]
    assert SECRET in joined


def test_a_prompt_is_inspected() -> None:
    body = {"model": "auto", "prompt": SECRET}
    request = completion_ask(body, request_id="r", default_max_tokens=5).request
    assert request.texts() == (("prompt", SECRET),)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": SECRET}},
        {"type": "image_url", "image_url": {"url": "data:,"}, "alt": SECRET},
        {"type": "input_audio", "input_audio": {"data": SECRET}},
        {"type": "file", "file": {"filename": SECRET}},
        {"type": "text", "text": "x", "alt": SECRET},
        {"type": "refusal", "refusal": SECRET},
    ],
)
def test_images_sound_and_files_are_refused_without_a_word_of_them(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as error:
        chat(messages=[{"role": "user", "content": [part]}])
    assert SECRET not in str(error.value)
    assert (error.value.param or "").startswith("messages[0].content[0]")


TOOL = {"type": "function", "function": {"name": "f", "description": SECRET, "parameters": {}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": SECRET}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"functions": [TOOL["function"]]}, "functions"),
        ({"tool_choice": {"type": "function", "function": {"name": SECRET}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": SECRET}}}, None),
        ({"audio": {"voice": SECRET}}, "audio"),
        ({"web_search_options": {"user_location": SECRET}}, "web_search_options"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]}, None),
        ({"messages": [{"role": "assistant", "function_call": CALL["function"]}]}, None),
        ({"messages": [{"role": "user", "content": "x", "title": SECRET}]}, None),
        ({"instructions": SECRET}, "instructions"),
    ],
)
def test_tools_and_their_arguments_are_refused_without_a_word_of_them(
    fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(BadRequest) as error:
        chat(**fields)
    assert SECRET not in str(error.value)
    assert param is None or error.value.param == param


def test_what_is_ignored_reaches_no_part_of_the_request() -> None:
    ignored: dict[str, Any] = dict.fromkeys(IGNORED, SECRET)
    odd = {"name": SECRET, "tool_call_id": SECRET, "refusal": SECRET}
    request = chat(**ignored, messages=[{"role": "user", "content": "hello", **odd}])
    assert SECRET not in list(strings(request))
    assert request.messages == (Message(role="user", content="hello"),)
