"""A corrected answer is continued where the endpoint can, and only as far as it may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from floe.cloud.client import record_nothing
from floe.cloud.openai_stream import OpenAICloud
from floe.core.advice import Advice, Question
from floe.core.errors import CloudFailed
from floe.core.verdict import Verdict
from floe.privacy.guard import guarded
from floe.testing.cloud_conformance import REQUEST
from floe.testing.live_server import live
from floe.testing.openai_upstream import build_openai_upstream
from floe.testing.scripted_engine import ScriptedEngine
from floe.testing.virtual_time import run_virtual

Say = Callable[[str], list[str]]


def event(choice: dict) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def token(text: str) -> bytes:
    spoken = {"token": text, "logprob": -0.1, "bytes": list(text.encode()), "top_logprobs": []}
    return event({"delta": {"content": text}, "logprobs": {"content": [spoken]}})


class Told(httpx.AsyncByteStream):
    def __init__(self, words: list[str], ends: bool) -> None:
        self.words, self.ends = words, ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for word in self.words:
            yield token(word)
        if not self.ends:
            await asyncio.Event().wait()
        yield event({"delta": {}, "finish_reason": "stop"})


class Upstream:
    """Says the words that follow an answer; `sent` holds the bodies."""

    def __init__(self, say: dict[str, list[str]], *, ends: bool = True) -> None:
        self.say, self.ends, self.sent = say, ends, []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.sent.append(body)
        last = body["messages"][-1]
        answer = last["content"] if last["role"] == "assistant" else ""
        return httpx.Response(200, stream=Told(self.say[answer], self.ends))

    def cloud(self, continues: str = "vllm", **options: object) -> OpenAICloud:
        return OpenAICloud(
            url="https://api.example/v1",
            model="m",
            on_send=record_nothing,
            continues=continues,  # type: ignore[arg-type]
            client=httpx.AsyncClient(transport=httpx.MockTransport(self)),
            **options,  # type: ignore[arg-type]
        )


def final(answer: str) -> Question:
    return Question(answer=answer.encode(), ahead_bytes=64)


def said(found: tuple[Advice, ...]) -> bytes:
    return b"".join(a.said for a in found)


STORY = {"": ["It", " is", " cold"], "It was": [" warm", " then"], "It was hot": [" here"]}


def test_an_answer_that_left_the_clouds_text_is_continued() -> None:
    async def main() -> None:
        upstream = Upstream(STORY)
        cloud = upstream.cloud()
        async with cloud.open(REQUEST) as advise:
            assert said(await advise(final(""))) == b"It is cold"
            found = await advise(final("It was"))
            assert said(found) == b" warm then" and found[0].offset_bytes == 6
            assert said(await advise(final("It was warm"))) == b" then"
            assert said(await advise(final("It was hot"))) == b" here"
        first, second, third = upstream.sent
        assert [m["role"] for m in first["messages"]] == ["user"]
        assert second["messages"][-1] == {"role": "assistant", "content": "It was"}
        assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
        assert third["messages"][-1]["content"] == "It was hot"
        assert cloud.counters().restarted == 2

    run_virtual(main())


def test_prefill_sends_the_answer_and_nothing_else() -> None:
    async def main() -> None:
        upstream = Upstream(STORY)
        async with upstream.cloud("prefill").open(REQUEST) as advise:
            await advise(final(""))
            await advise(final("It was"))
        assert upstream.sent[1]["messages"][-1]["role"] == "assistant"
        assert set(upstream.sent[0]) == set(upstream.sent[1])

    run_virtual(main())


@pytest.mark.parametrize(
    ("continues", "answer", "ahead_bytes"),
    [
        ("no", b"It was", 64),
        ("vllm", b"It was", 0),  # a guess of the asker's
        ("vllm", b"It was \n", 64),  # white space at the seam (B46)
        ("vllm", b"It \xe9\x9b", 64),  # half a character
    ],
)
def test_b46_what_is_not_continued_gets_no_advice_and_sends_nothing(
    continues: str, answer: bytes, ahead_bytes: int
) -> None:
    async def main() -> None:
        upstream = Upstream(STORY)
        async with upstream.cloud(continues).open(REQUEST) as advise:
            await advise(final(""))
            assert await advise(Question(answer=answer, ahead_bytes=ahead_bytes)) == ()
        assert len(upstream.sent) == 1

    run_virtual(main())


def test_restarts_are_counted_and_end() -> None:
    async def main() -> None:
        texts = ["a" * n for n in range(1, 9)]
        upstream = Upstream({"": ["x"], **{t: ["y"] for t in texts}})
        async with upstream.cloud(max_restarts=3).open(REQUEST) as advise:
            await advise(final(""))
            found = [await advise(final(t)) for t in texts]
        assert [bool(f) for f in found] == [True] * 3 + [False] * 5
        assert len(upstream.sent) == 4

    run_virtual(main())


def test_a_private_answer_is_not_sent() -> None:
    """The guard sees every question; a restart happens inside one, and never after a refusal."""

    async def main() -> None:
        upstream = Upstream(STORY)
        private = Verdict(action="local", reason="private")
        allowed = Verdict(action="allow", reason="nothing found")
        async with upstream.cloud().open(REQUEST) as asked:
            advise = guarded(asked, lambda text: private if "was" in text else allowed)
            assert await advise(final(""))
            assert await advise(final("It was")) == ()
            assert await advise(final("It was hot")) == ()
        assert len(upstream.sent) == 1

    run_virtual(main())


async def test_each_restart_is_recorded_before_it_is_sent() -> None:
    recorded: list[bytes] = []
    upstream = Upstream(STORY)
    cloud = OpenAICloud(
        url="https://api.example/v1",
        model="m",
        continues="prefill",
        on_send=lambda destination, payload, request_id: recorded.append(payload),
        client=httpx.AsyncClient(transport=httpx.MockTransport(upstream)),
    )
    async with cloud.open(REQUEST) as advise:
        await advise(final(""))
        await advise(final("It was"))
    assert [json.loads(r) for r in recorded] == upstream.sent and b"It was" in recorded[1]


def test_a_restart_ends_the_stream_before_it() -> None:
    async def main() -> None:
        upstream = Upstream(STORY, ends=False)
        async with upstream.cloud().open(REQUEST) as advise:
            await advise(final(""))
            await advise(final("It was"))
            await asyncio.sleep(0.01)
            assert len(asyncio.all_tasks()) == 2  # this one and the reader
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_advice_ahead_begins_inside_a_token_with_what_the_cloud_said_there() -> None:
    async def main() -> None:
        upstream = Upstream({"": ["It", " is", " cold"]})
        async with upstream.cloud("no").open(REQUEST) as advise:
            await advise(final(""))
            inside, after, end = await advise(final("It i"))
            assert (inside.offset_bytes, inside.candidates, inside.said) == (4, (), b"s")
            assert (after.offset_bytes, after.said, end.said) == (5, b" cold", b"")
            near = await advise(Question(answer=b"It", ahead_bytes=3))
            assert [a.offset_bytes for a in near] == [2, 5]

    run_virtual(main())


def test_a_draft_is_answered_when_the_stream_has_covered_it_or_left_it() -> None:
    async def main() -> None:
        upstream = Upstream({"": ["It", " is", " cold"]}, ends=False)
        async with upstream.cloud("no").open(REQUEST) as advise:
            found = await advise(Question(answer=b"", draft=b"It is"))
            assert [a.offset_bytes for a in found] == [0, 2, 5]
            found = await advise(Question(answer=b"", draft=b"It was"))
            assert [a.offset_bytes for a in found] == [0, 2]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(advise(Question(answer=b"It is", draft=b" cold!")), 1)

    run_virtual(main())


def test_what_came_before_a_cut_is_told_even_if_the_draft_goes_further() -> None:
    class Cut(Told):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for word in self.words:
                yield token(word)

    async def main() -> None:
        client = httpx.AsyncClient(
            transport=httpx.MockTransport(
                lambda request: httpx.Response(200, stream=Cut(["It", " is"], True))
            )
        )
        cloud = OpenAICloud(
            url="https://api.example", model="m", on_send=record_nothing, client=client
        )
        async with cloud.open(REQUEST) as advise:
            found = await advise(Question(answer=b"", draft=b"It is cold"))
            assert [a.offset_bytes for a in found] == [0, 2]
            with pytest.raises(CloudFailed, match="cut before its end"):
                await advise(Question(answer=b"It is", draft=b" cold"))

    run_virtual(main())


def test_b40_a_stream_that_was_cut_goes_on_where_the_endpoint_can_continue() -> None:
    class CutOnce(Upstream):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            response = super().__call__(request)
            if len(self.sent) == 1:
                return httpx.Response(200, content=token("It") + token(" is"))
            return response

    async def main(continues: str) -> int:
        upstream = CutOnce({"": [], "It is": [" cold", " here"]})
        async with upstream.cloud(continues).open(REQUEST) as advise:
            assert said(await advise(final(""))) == b"It is"
            if continues == "no":
                with pytest.raises(CloudFailed, match="cut before its end"):
                    await advise(final("It is"))
            else:
                assert said(await advise(final("It is"))) == b" cold here"
        return len(upstream.sent)

    assert run_virtual(main("no")) == 1
    assert run_virtual(main("prefill")) == 2


def test_a_dead_endpoint_is_tried_again_once_a_question() -> None:
    class Dead(Upstream):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            self.sent.append(request)
            return httpx.Response(200, content=token("It") if len(self.sent) == 1 else b"")

    async def main() -> None:
        upstream = Dead({})
        async with upstream.cloud().open(REQUEST) as advise:
            assert said(await advise(final(""))) == b"It"
            for n in range(3):
                with pytest.raises(CloudFailed, match="cut before its end"):
                    await advise(final("It" + n * "y"))
        assert len(upstream.sent) == 4

    run_virtual(main())


async def test_a_real_server_continues_a_corrected_answer() -> None:
    answer = "It is white and warm."
    engine = ScriptedEngine(answers={"snow": answer})
    app = build_openai_upstream(
        engine=engine,
        encode=lambda messages, prompt: engine.tokenize(
            f"{messages[-1].content}<|im_start|>assistant\n", special=True
        ),
    )
    with live(app) as server:
        cloud = OpenAICloud(
            url=server.url + "/v1", model="m", continues="vllm", on_send=record_nothing
        )
        async with cloud.open(REQUEST) as advise:
            await advise(final(""))
            found = await advise(final("It is white?!"))
            assert found and found[0].offset_bytes == 13
        await cloud.close()
    assert app.state.asked[1]["messages"][-1]["content"] == "It is white?!"
