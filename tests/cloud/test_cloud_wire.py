from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.cloud import wire
from floe.cloud.wire import (
    LogitRequest,
    LogitResponse,
    dump_request,
    dump_response,
    parse_request,
    parse_response,
)
from floe.core.advice import Advice, Candidate
from floe.core.errors import BadRequest
from floe.core.request import Message

messages = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        content=st.text(max_size=20),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
requests = st.builds(
    LogitRequest,
    messages=messages,
    answer=st.binary(max_size=30),
    draft=st.binary(max_size=30),
    top_k=st.integers(1, 1000),
) | st.builds(LogitRequest, prompt=st.text(max_size=30), answer=st.binary(max_size=30))
candidates = st.builds(
    Candidate,
    data=st.binary(min_size=1, max_size=8),
    log_prob=st.floats(-90, 0).map(lambda x: round(x, 5)),
) | st.just(Candidate(data=b"", log_prob=-0.5, end=True))
responses = st.builds(
    LogitResponse,
    model=st.text(max_size=8),
    tokenizer_digest=st.text(max_size=8),
    cached_tokens=st.integers(0, 5000),
    positions=st.lists(st.integers(0, 1000), max_size=4, unique=True).flatmap(
        lambda offsets: st.tuples(
            *(
                st.builds(
                    Advice,
                    offset_bytes=st.just(o),
                    candidates=st.lists(candidates, max_size=4).map(tuple),
                )
                for o in sorted(offsets)
            )
        )
    ),
)


@given(requests)
@settings(max_examples=150, deadline=None)
def test_a_request_survives_the_wire(request: LogitRequest) -> None:
    assert parse_request(dump_request(request)) == request


@given(responses)
@settings(max_examples=150, deadline=None)
def test_a_response_survives_the_wire(response: LogitResponse) -> None:
    assert parse_response(dump_response(response)) == response


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_any_other_bytes_are_refused_by_name(body: bytes) -> None:
    for parse in (parse_request, parse_response):
        with pytest.raises(BadRequest):
            parse(body)


GOOD = {"version": 1, "prompt": "x"}
TURN = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ([], None, "the body must be a JSON object"),
        ({**GOOD, "Zebedee": 1}, None, "unknown field; known: answer, draft"),
        ({"prompt": "x"}, "version", "version must be 1; use the same Floe on both sides"),
        ({"version": 1}, "messages", "give either messages or prompt"),
        ({**GOOD, "messages": [TURN]}, "messages", "give either messages or prompt"),
        ({"version": 1, "prompt": 3}, "prompt", "prompt must be a string"),
        ({"version": 1, "messages": {}}, "messages", "must be a list of at most 1000 items"),
        ({"version": 1, "messages": []}, "messages", "messages must not be empty"),
        ({"version": 1, "messages": [TURN] * 1001}, "messages", "at most 1000 items"),
        ({"version": 1, "messages": [{"role": "user"}]}, "messages[0]", "role and content"),
        (
            {"version": 1, "messages": [TURN, {**TURN, "role": "god"}]},
            "messages[1].role",
            "must be one of system, user, assistant, tool",
        ),
        (
            {"version": 1, "messages": [{**TURN, "content": None}]},
            "messages[0].content",
            "must be a string",
        ),
        ({**GOOD, "answer": "###"}, "answer", "answer must be base64"),
        ({**GOOD, "answer": 7}, "answer", "answer must be base64"),
        ({**GOOD, "draft": "A" * 400_000}, "draft", "draft must be at most 200000 bytes"),
        ({**GOOD, "top_k": True}, "top_k", "must be an integer between 1 and 1000"),
        ({**GOOD, "top_k": 1001}, "top_k", "must be an integer between 1 and 1000"),
    ],
)
def test_a_bad_request_names_the_field(body: object, param: str | None, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(json.dumps(body).encode())
    assert text in caught.value.message and caught.value.param == param
    assert "Zebedee" not in caught.value.message


def good_response(**change: object) -> dict[str, object]:
    return {"version": 1, "model": "m", "tokenizer_digest": "d", "positions": [], **change}


def position(*top: object, offset: object = 0) -> dict[str, object]:
    return {"offset_bytes": offset, "top": list(top)}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (good_response(model=None), "model must be a string"),
        (good_response(version=2), "version must be 1"),
        (good_response(cached_tokens=-1), "cached_tokens must be an integer between 0"),
        (good_response(positions=None), "positions must be a list of at most 512 items"),
        (good_response(positions=[position()] * 513), "at most 512 items"),
        (good_response(positions=[position(), position()]), "offset_bytes must rise"),
        (good_response(positions=[[]]), "positions[0] must have offset_bytes and top"),
        (good_response(positions=[position(offset=-1)]), "positions[0].offset_bytes must be an"),
        (good_response(positions=[position(*[["YQ==", -1, 0]] * 1001)]), "at most 1000 items"),
        (good_response(positions=[position(["YQ==", -1])]), "must be [bytes, log_prob, end]"),
        (good_response(positions=[position(["YQ==", "x", 0])]), "log_prob must be a number"),
        (good_response(positions=[position(["YQ==", 0.5, 0])]), "must be finite and not above 0"),
        (good_response(positions=[position(["YQ==", math.nan, 0])]), "must be finite and not"),
        (good_response(positions=[position(["YQ==", -math.inf, 0])]), "must be finite and not"),
        (good_response(positions=[position(["YQ==", -1, 2])]), "end must be 0 or 1"),
        (good_response(positions=[position(["", -1, 0])]), "must have either bytes or end"),
        (good_response(positions=[position(["YQ==", -1, 1])]), "must have either bytes or end"),
        (good_response(positions=[position(["YQ", -1, 0])]), "positions[0].top[0] must be base64"),
        (
            good_response(positions=[position(["YWFh" * 400, -1, 0])]),
            "positions[0].top[0] must be at most 1024 bytes",
        ),
    ],
)
def test_a_bad_response_names_the_field(body: object, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_response(json.dumps(body).encode())
    assert text in caught.value.message


def test_the_size_of_a_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_RESPONSE_BYTES", 10)
    with pytest.raises(BadRequest, match="the response is above 10 bytes"):
        parse_response(b"x" * 11)
    with pytest.raises(BadRequest, match="the body is not valid JSON"):
        parse_request(b"[" * 100_000)


def test_a_rounded_zero_is_zero_and_numbers_stay_small() -> None:
    body = good_response(positions=[position(["YQ==", 0.0004, 0])])
    assert parse_response(json.dumps(body).encode()).positions[0].candidates[0].log_prob == 0.0
    advice = Advice(offset_bytes=3, candidates=(Candidate(data=b"ab", log_prob=-1.23456789),))
    sent = dump_response(LogitResponse(model="m", tokenizer_digest="d", positions=(advice,)))
    assert b'{"offset_bytes":3,"top":[["YWI=",-1.23457,0]]}' in sent
