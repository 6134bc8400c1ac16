"""The official client, curl and raw HTTP against a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI
from scripted_service import HELLO, LOCAL, Script, draw, served, service_of

from floe.core.errors import ContextTooLong
from floe.serving.app import build_app

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def url(script: Script) -> Iterator[str]:
    with served(build_app(service_of(script, fingerprint="fp_1"))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def fresh(script: Script) -> Iterator[None]:
    before = dict(vars(script))
    yield
    vars(script).update(before)
    script.requests.clear()


def test_chat(client: OpenAI, script: Script) -> None:
    answer = client.chat.completions.create(
        model="auto", messages=MESSAGES, temperature=0.5, seed=4
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.system_fingerprint == "fp_1"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)
    assert answer.usage.total_tokens == 11
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer.model_extra["floe"] == {
        "route": {"how": "routed", "adapters": [{"id": "maths", "weight": 1.0}]},
        "verdict": {"action": "allow", "reason": "nothing private found", "entities": []},
        "cloud": "llm",
        "cloud_asked": 2,
        "fused_tokens": 1,
        "cloud_tokens": 1,
    }
    asked = script.requests[-1]
    assert asked.id == answer.id
    assert (asked.sampling.temperature, asked.sampling.seed) == (0.5, 4)


def test_a_private_request_says_so_by_class_only(client: OpenAI, script: Script) -> None:
    script.verdict, script.cloud = LOCAL, ""
    floe = client.chat.completions.create(model="auto", messages=MESSAGES).model_extra["floe"]
    assert floe["verdict"] == {"action": "local", "reason": "private data", "entities": ["EMAIL"]}
    assert floe["cloud"] is None


def test_a_cloud_that_was_allowed_but_not_asked_is_not_named(
    client: OpenAI, script: Script
) -> None:
    script.asked = 0
    floe = client.chat.completions.create(model="auto", messages=MESSAGES).model_extra["floe"]
    assert (floe["cloud"], floe["cloud_asked"]) == (None, 0)
    chunks = list(client.chat.completions.create(model="auto", messages=MESSAGES, stream=True))
    assert [c.model_extra["floe"].get("cloud") for c in chunks] == [None] * len(chunks)


def test_chat_stream(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="auto", messages=MESSAGES, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [d.role for d in deltas] == ["assistant"] + [None] * 5
    assert [d.content for d in deltas] == ["", "Hello", ", ", "wor", "ld", None]
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 5 + ["stop"]
    floes = [chunk.model_extra["floe"] for chunk in chunks]
    assert [f.get("origin") for f in floes[1:-1]] == ["edge", "fused", "cloud", "edge"]
    assert floes[0]["route"] == floes[-1]["route"]
    assert "cloud" not in floes[0]  # it is not known yet
    assert (floes[-1]["cloud"], floes[-1]["cloud_asked"]) == ("llm", 2)
    assert (floes[-1]["fused_tokens"], floes[-1]["cloud_tokens"]) == (1, 1)
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_usage_is_a_last_chunk_without_choices(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="auto", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_the_stream_as_bytes(url: str) -> None:
    body = {"model": "auto", "messages": MESSAGES, "stream": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-request-id"].startswith("chatcmpl-")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert {json.loads(e[6:])["id"] for e in events[:-2]} == {answer.headers["x-request-id"]}


def test_a_line_separator_in_the_text_does_not_split_an_event(url: str, script: Script) -> None:
    script.draws = (draw("a\u2028b\r\n\x85".encode()),)
    body = {"model": "auto", "messages": MESSAGES, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[1][6:])["choices"][0]["delta"]["content"] == "a\u2028b\r\n\x85"


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a55_chat_log_probs_whole_and_streamed(client: OpenAI, stream: bool, top: int) -> None:
    answer = client.chat.completions.create(
        model="auto", messages=MESSAGES, logprobs=True, top_logprobs=top, stream=stream
    )
    if stream:
        shown = [c.choices[0].logprobs for c in answer if c.choices[0].logprobs]
        entries = [entry for one in shown for entry in one.content]
        assert len(shown) == 4
    else:
        entries = answer.choices[0].logprobs.content
    assert [e.token for e in entries] == ["Hello", ", ", "wor", "ld"]
    assert [e.logprob for e in entries] == [-0.5] * 4
    assert [bytes(e.bytes) for e in entries] == [d.data for d in HELLO]
    assert [t.token for t in entries[0].top_logprobs] == ["Hello", "t1"][:top]


@pytest.mark.parametrize("stream", [False, True])
def test_a55_completion_log_probs_whole_and_streamed(client: OpenAI, stream: bool) -> None:
    answer = client.completions.create(model="smol", prompt="once", logprobs=2, stream=stream)
    choices = [c.choices[0] for c in answer] if stream else [answer.choices[0]]
    shown = [c.logprobs for c in choices if c.logprobs]
    assert [t for one in shown for t in one.tokens] == ["Hello", ", ", "wor", "ld"]
    assert [o for one in shown for o in one.text_offset] == [0, 5, 7, 10]
    assert [p for one in shown for p in one.token_logprobs] == [-0.5] * 4
    assert shown[0].top_logprobs[0] == {"Hello": -0.5, "t1": -1.0}


def test_completion(client: OpenAI, script: Script) -> None:
    answer = client.completions.create(model="smol", prompt="once", max_tokens=2)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "Hello, "
    assert answer.usage.completion_tokens == 2
    assert script.requests[-1].prompt == "once"
    assert script.requests[-1].messages == ()


def test_completion_stream(client: OpenAI) -> None:
    chunks = list(client.completions.create(model="smol", prompt=["once"], stream=True))
    assert [c.choices[0].text for c in chunks] == ["Hello", ", ", "wor", "ld", ""]
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 4 + ["stop"]


def test_a46_text_held_back_for_a_stop_arrives_before_the_end(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model="auto", messages=MESSAGES, stream=True, stop="ld!")
    )
    assert [c.choices[0].delta.content for c in chunks[1:]] == ["Hello", ", ", "wor", "ld", None]
    assert chunks[-2].choices[0].finish_reason is None


def test_a41_no_empty_chunk_for_half_a_character(client: OpenAI, script: Script) -> None:
    script.draws = (draw(b"\xf0\x9f"), draw(b"\x98\x80"))
    ask = {"model": "auto", "messages": MESSAGES, "stream": True}
    plain = list(client.chat.completions.create(**ask))
    assert [c.choices[0].delta.content for c in plain] == ["", "😀", None]
    told = list(client.chat.completions.create(**ask, logprobs=True))
    assert [c.choices[0].delta.content for c in told] == ["", "", "😀", None]
    entries = [e for c in told if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert b"".join(bytes(e.bytes) for e in entries).decode() == "😀"
    assert entries[0].token == "bytes:\\xf0\\x9f"


def test_a47_a_stop_within_the_stream_ends_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="auto", messages=MESSAGES, stop=[", w", "zzz"])
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a52_a53_minus_infinity_is_a_number(client: OpenAI, script: Script, stream: bool) -> None:
    script.draws = (draw(b"a", log_prob=float("-inf")),)
    answer = client.chat.completions.create(
        model="auto", messages=MESSAGES, logprobs=True, top_logprobs=1, stream=stream
    )
    choices = [c.choices[0] for c in answer] if stream else [answer.choices[0]]
    entry = next(c.logprobs for c in choices if c.logprobs).content[0]
    assert (entry.logprob, entry.top_logprobs[0].logprob) == (-9999.0, -9999.0)


def test_models(client: OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {"smol", "auto", "maths", "broken", "words"}
    assert models["maths"].owned_by == "floe"
    assert models["maths"].model_extra["parent"] == "smol"
    assert models["maths"].model_extra["root"] == "smol"
    assert models["smol"].model_extra["parent"] is None
    assert models["smol"].model_extra["root"] == "smol"
    assert models["smol"].created == 1_700_000_000


def test_a34_a_model_shows_the_state_the_engine_gives_it(client: OpenAI) -> None:
    floe = client.models.retrieve("broken").model_extra["floe"]
    assert (floe["state"], floe["reason"]) == ("failed", "wrong base model")
    floe = client.models.retrieve("maths").model_extra["floe"]
    assert (floe["state"], floe["digest"], floe["pins"]) == ("ready", "d1", 1)


def test_a_model_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/models lists them") as caught:
        client.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


def test_embeddings(client: OpenAI) -> None:
    # the client asks for base64 when no format is named
    packed = client.embeddings.create(model="words", input=["a", "bcd"])
    plain = client.embeddings.create(model="words", input=["a", "bcd"], encoding_format="float")
    assert [e.index for e in packed.data] == [0, 1]
    for a, b in zip(packed.data, plain.data, strict=True):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-6)
        assert len(b.embedding) == 4
    assert packed.usage.prompt_tokens == 4
    assert len(client.embeddings.create(model="words", input="a", dimensions=4).data) == 1


def test_embedding_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions must be 4"):
        client.embeddings.create(model="words", input="a", dimensions=8)
    with pytest.raises(openai.NotFoundError, match='only embedding model is "words"'):
        client.embeddings.create(model="smol", input="a")
    with pytest.raises(openai.BadRequestError, match="token arrays are not understood"):
        client.embeddings.create(model="words", input=[1, 2])
    with pytest.raises(openai.BadRequestError, match="input must not be empty"):
        client.embeddings.create(model="words", input="")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_an_error_before_the_first_token_has_its_status(
    client: OpenAI, script: Script, stream: bool, at: int
) -> None:
    script.error, script.fail_at = ContextTooLong("2100 tokens do not fit 2048", param=None), at
    with pytest.raises(openai.BadRequestError, match="2100 tokens do not fit 2048") as caught:
        client.chat.completions.create(model="auto", messages=MESSAGES, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id.startswith("chatcmpl-")


def test_an_error_in_mid_stream_is_the_last_event(client: OpenAI, url: str, script: Script) -> None:
    script.error, script.fail_at = RuntimeError("secret of the user"), 3
    seen = []
    with pytest.raises(openai.APIError, match="request id chatcmpl-"):
        for chunk in client.chat.completions.create(model="auto", messages=MESSAGES, stream=True):
            seen.append(chunk.choices[0].delta.content)
    assert seen == ["", "Hello", ", "]
    body = {"model": "auto", "messages": MESSAGES, "stream": True}
    text = httpx.post(f"{url}/v1/chat/completions", json=body).text
    assert text.count('"error"') == 1
    assert "[DONE]" not in text
    assert "secret" not in text


def test_a_wrong_parameter_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature must be a number") as caught:
        client.chat.completions.create(model="auto", messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"


def test_the_extensions(client: OpenAI, script: Script) -> None:
    client.chat.completions.create(
        model="smol",
        messages=MESSAGES,
        extra_body={"lora": [{"id": "maths", "scale": 0.5}], "floe": {"cloud": False}},
    )
    asked = script.requests[-1]
    assert [(a.name, a.scale) for a in asked.lora] == [("maths", 0.5)]
    assert asked.cloud is False


def test_a19_a20_the_mix_belongs_to_the_request(client: OpenAI, script: Script) -> None:
    """Nothing of one request's mix is left for the next."""
    with_mix = {"lora": [{"id": "maths", "scale": 0.5}]}
    client.chat.completions.create(model="smol", messages=MESSAGES, extra_body=with_mix)
    client.chat.completions.create(model="smol", messages=MESSAGES)
    assert [len(asked.lora) for asked in script.requests] == [1, 0]


def curl(url: str, *options: str) -> str:
    command = ["curl", "-sN", "--max-time", "20", f"{url}/v1/chat/completions", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_curl(url: str) -> None:
    body = '{"model": "auto", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
    json_type = "Content-Type: application/json"
    assert curl(url, "-H", json_type, "-d", body).endswith("data: [DONE]\n\n")
    assert "content-type must be application/json" in curl(url, "-d", body)


def test_a_body_announced_too_large_is_refused_unread(url: str) -> None:
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        content=b" " * 3_000_000,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 413
    assert "larger than 1000000 bytes" in answer.json()["error"]["message"]
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
