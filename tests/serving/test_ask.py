"""Bodies of requests: what is understood, what is refused and how the refusal reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadRequest
from floe.core.request import AdapterScale, Message, Sampling
from floe.serving.ask import Ask, chat_ask, completion_ask
from floe.serving.body import parse_json
from floe.serving.unsupported import IGNORED, NEUTRAL

USER = {"role": "user", "content": "hi"}


def chat(**changes: Any) -> Ask:
    body = {"model": "auto", "messages": [USER]} | changes
    return chat_ask(body, request_id="id", default_max_tokens=50)


def completion(**changes: Any) -> Ask:
    body = {"model": "auto", "prompt": "once"} | changes
    return completion_ask(body, request_id="id", default_max_tokens=50)


def refused(param: str | None, text: str, **changes: Any) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        chat(**changes)
    assert caught.value.param == param


def test_a56_what_is_not_given_is_off() -> None:
    assert chat().request.sampling == Sampling(max_tokens=50, fits_room=True)
    assert completion().request.sampling == Sampling(max_tokens=50, fits_room=True)
    nulls = dict.fromkeys(["temperature", "top_p", "seed", "stop", "max_tokens", "n", "logprobs"])
    assert chat(**nulls) == chat()


def test_every_field_arrives() -> None:
    ask = chat(
        temperature=1,
        top_p=0.9,
        seed=-1,
        stop=["a", "b"],
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=20,
        stream=True,
        stream_options={"include_usage": True},
        lora=[{"id": "maths", "scale": -0.5}, {"id": "law"}],
        floe={"cloud": False},
        n=1,
    )
    assert ask.request.sampling == Sampling(
        max_tokens=9, temperature=1.0, top_p=0.9, seed=2**64 - 1, stop=("a", "b")
    )
    assert ask.request.lora == (
        AdapterScale(name="maths", scale=-0.5),
        AdapterScale(name="law", scale=1.0),
    )
    assert (ask.request.top_log_probs, ask.log_probs) == (20, True)
    assert (ask.stream, ask.include_usage, ask.request.cloud) == (True, True, False)


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "", "tool_calls": None, "refusal": None},
            {"role": "tool", "content": "t", "tool_call_id": "x"},
        ]
    )
    assert ask.request.messages == (
        Message(role="system", content="d"),
        Message(role="user", content="a\nb"),
        Message(role="assistant", content=""),
        Message(role="tool", content="t"),
    )


def test_completion_log_probs_zero_still_asks_for_the_chosen_token() -> None:
    assert completion().log_probs is False
    asked = completion(logprobs=0)
    assert (asked.log_probs, asked.request.top_log_probs) == (True, 0)


@pytest.mark.parametrize(
    ("param", "text", "changes"),
    [
        ("n", "n must be 1: send the request again", {"n": 2}),
        ("n", "n must be a whole number from 1", {"n": True}),
        ("temperature", "temperature must be a number from 0 to 2", {"temperature": 2.1}),
        ("temperature", "from 0 to 2", {"temperature": -0.1}),
        ("temperature", "from 0 to 2", {"temperature": "1"}),
        ("temperature", "from 0 to 2", {"temperature": float("nan")}),
        ("temperature", "from 0 to 2", {"temperature": float("inf")}),
        ("temperature", "from 0 to 2", {"temperature": 10**400}),
        ("temperature", "from 0 to 2", {"temperature": True}),
        ("top_p", "top_p must be a number from 0 to 1", {"top_p": 1.01}),
        ("max_tokens", "max_tokens must be a whole number from 1 to", {"max_tokens": 0}),
        ("max_tokens", "whole number", {"max_tokens": 1.5}),
        ("max_tokens", "whole number", {"max_tokens": 10**30}),
        ("max_tokens", "disagree", {"max_tokens": 1, "max_completion_tokens": 2}),
        ("seed", "seed must be a whole number", {"seed": 2**63}),
        ("stop", "stop must be a string or an array", {"stop": 3}),
        ("stop", "stop must not be empty", {"stop": ""}),
        ("stop", "stop must have at most 500 characters", {"stop": "x" * 501}),
        ("stop", "stop must be an array of 0 to 16 elements", {"stop": ["x"] * 17}),
        ("stop[1]", r"stop\[1\] must be a string", {"stop": ["x", 1]}),
        ("top_logprobs", "whole number from 0 to 20", {"logprobs": True, "top_logprobs": 21}),
        ("top_logprobs", "top_logprobs needs logprobs: true", {"top_logprobs": 2}),
        ("logprobs", "logprobs must be true or false", {"logprobs": 1}),
        ("stream", "stream must be true or false", {"stream": "yes"}),
        ("stream_options", "needs stream: true", {"stream_options": {"include_usage": True}}),
        ("stream_options.include_usage", "true or false",
         {"stream": True, "stream_options": {"include_usage": 1}}),
        ("stream_options.include_usag", 'did you mean "stream_options.include_usage"',
         {"stream": True, "stream_options": {"include_usag": True}}),
        ("model", "model is required", {"model": None}),
        ("model", "model must not be empty", {"model": ""}),
        ("model", "model must be a string", {"model": 7}),
        ("messages", "messages is required", {"messages": None}),
        ("messages", "messages must be an array of 1 to", {"messages": []}),
        ("messages[0]", r"messages\[0\] must be an object", {"messages": ["hi"]}),
        ("messages[0].role", "must be one of system, developer, user", {"messages": [{}]}),
        ("messages[0].role", "must be one of", {"messages": [{"role": ["user"]}]}),
        ("messages[0].content", "must be a string or an array", {"messages": [{"role": "user"}]}),
        ("messages[0].content", "must be a string or an array",
         {"messages": [{"role": "user", "content": []}]}),
        ("messages[0].content[0]", "no images",
         {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("messages[0].content[0].text", "must be a string",
         {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("messages[0].content", "lone surrogate",
         {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("messages[0].tool_calls", "Floe does not call tools",
         {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}),
        ("messages[0].contents", 'did you mean "messages\\[0\\].content"',
         {"messages": [{"role": "user", "contents": "x"}]}),
        ("lora", "lora must be an array", {"lora": {"id": "maths"}}),
        ("lora[0].id", "must be a string", {"lora": [{"id": 0, "scale": 0.5}]}),
        ("lora[0].scale", "from -16 to 16", {"lora": [{"id": "maths", "scale": float("inf")}]}),
        ("lora[0].scale", "from -16 to 16", {"lora": [{"id": "maths", "scale": float("nan")}]}),
        ("lora[1].id", "given twice", {"lora": [{"id": "maths"}, {"id": "maths"}]}),
        ("lora[0].scal", 'did you mean "lora\\[0\\].scale"', {"lora": [{"scal": 1}]}),
        ("floe", "floe must be an object", {"floe": True}),
        ("floe.cloud", "true or false", {"floe": {"cloud": "no"}}),
        ("floe.clout", 'did you mean "floe.cloud"', {"floe": {"clout": False}}),
        ("temprature", 'unknown field "temprature": did you mean "temperature"', {"temprature": 1}),
        ("zzzz", 'unknown field "zzzz": remove it', {"zzzz": None}),
    ],
)  # fmt: skip
def test_a20_what_is_wrong_is_refused_by_name(
    param: str, text: str, changes: dict[str, Any]
) -> None:
    refused(param, text, **changes)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("prompt is required", {"prompt": None}),
        ("prompt must not be empty", {"prompt": ""}),
        ("prompt must be one string", {"prompt": ["a", "b"]}),
        ("prompt must be one string", {"prompt": [1, 2]}),
        ("prompt must be a string", {"prompt": {}}),
        ("logprobs must be a whole number from 0 to 20", {"logprobs": 21}),
        ("logprobs must be a whole number", {"logprobs": True}),
        ("echo is not supported", {"echo": True}),
        ("best_of is not supported", {"best_of": 2}),
        ("suffix is not supported", {"suffix": "x"}),
        ("unknown field", {"messages": [USER]}),
    ],
)
def test_what_is_wrong_with_a_completion(text: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=text):
        completion(**changes)


REAL: dict[str, Any] = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "functions": [{}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_schema"},
    "logit_bias": {"1": 2},
    "presence_penalty": 0.1,
    "frequency_penalty": False,
    "repetition_penalty": 1.1,
    "top_k": 40,
    "min_p": 0.1,
    "audio": {},
    "modalities": ["audio"],
    "reasoning_effort": "high",
    "verbosity": "low",
    "web_search_options": {},
    "best_of": 2,
    "echo": True,
    "suffix": "x",
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_without_support_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    refused(name, f"{name} is not supported: remove it", **{name: REAL[name]})
    for value in (None, *NEUTRAL[name]):
        assert chat(**{name: value}) == chat()


@pytest.mark.parametrize("name", IGNORED)
def test_a_harmless_field_is_ignored(name: str) -> None:
    assert chat(**{name: "anything"}) == chat()


MARK = "MARKERTEXT"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(MARK),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "id", "x"]), inner)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    ["model", "messages", "prompt", "stop", "seed", "lora", "floe", "n", "stream", "logprobs",
     "top_logprobs", "max_tokens", "stream_options", "tools", "temperature"]
)  # fmt: skip


@given(st.dictionaries(names, values, max_size=6))
def test_any_json_is_understood_or_refused_without_quoting_it(body: dict[str, Any]) -> None:
    for parse in (chat_ask, completion_ask):
        for base in ({}, {"model": "auto", "messages": [USER]}, {"model": "auto", "prompt": "x"}):
            try:
                parse(base | body, request_id="id", default_max_tokens=5)
            except BadRequest as error:
                assert MARK not in error.message + str(error.param)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not valid JSON: Expecting value at line 1 column 1"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "holds NaN, which is not a JSON number"),
        (b'{"a": -Infinity}', "holds -Infinity"),
        (b"\xff\xfe", "not valid UTF-8 at byte 0"),
        (b"[]", "the body must be an object"),
        (b"[" * 100_000, "nests too many levels"),
        (b'{"a":' * 100_000, "nests too many levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": 1, "b": 2, "a": 3}', 'the field "a" is given twice'),
    ],
)
def test_bodies_that_are_not_plain_json(data: bytes, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        parse_json(data)


def test_a_huge_float_in_the_body_is_refused_by_its_field() -> None:
    refused("temperature", "from 0 to 2", **parse_json(b'{"temperature": 1e999}'))


def test_a_key_is_shown_short_and_plain() -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**{"\ud800" + "k" * 1000: 1})
    assert len(caught.value.message) < 120
    json.dumps(caught.value.message).encode("ascii")


def test_keys_given_twice_are_found_fast() -> None:
    pairs = ",".join(f'"k{i}":1' for i in range(50_000))
    with pytest.raises(BadRequest, match='"k49999" is given twice'):
        parse_json(f'{{{pairs},"k49999":1}}'.encode())
