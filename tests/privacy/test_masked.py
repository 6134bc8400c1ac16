"""The cloud sees placeholders and never a byte of a value, wherever the answer is cut."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.answer import Adapters, Mask, Parts, answer
from floe.answer import Cloud as AnyCloud
from floe.cloud.logits import LogitCloud
from floe.cloud.openai_stream import OpenAICloud
from floe.core.advice import Advice, Candidate, Question
from floe.core.request import Message, Request, Sampling
from floe.core.route import Route
from floe.core.sections import PrivacyConfig, TenantConfig
from floe.core.token import Event, Finished, Started, Token
from floe.core.verdict import Finding, Verdict
from floe.fusion.align import Alignment
from floe.fusion.cloud_drafts import CloudDraftsFuser
from floe.fusion.speculate import Limits, SpeculativeFuser
from floe.privacy.base import Span
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.guard import guarded
from floe.privacy.masked import egress_reason, for_cloud, masked
from floe.privacy.masking import CannotMask, mask_request
from floe.privacy.policy import policies_of
from floe.privacy.values import Value, Values, fold
from floe.serving.logits_app import build_logits_app
from floe.serving.replies import opening_facts
from floe.testing.openai_upstream import build_openai_upstream
from floe.testing.scripted_engine import ScriptedEngine

ADA = Values(
    [
        Value(text="Ada King", placeholder="[PERSON_1]"),
        Value(text="Öztürk", placeholder="[PERSON_2]"),
        Value(text="King", placeholder="[PERSON_1_2]", is_word=True),
    ]
)
OWN = (Candidate(data=b" the", log_prob=-0.2), Candidate(data=b"", log_prob=-2.0, end=True))


class Cloud:
    """Remembers what it was sent, and answers at every byte of it unless told otherwise."""

    def __init__(self, *answers: Advice) -> None:
        self.asked: list[Question] = []
        self.reasons: list[str] = []
        self._answers = answers

    async def __call__(self, question: Question) -> tuple[Advice, ...]:
        self.asked.append(question)
        self.reasons.append(egress_reason())
        places = range(len(question.answer), len(question.text) + 1)
        return self._answers or tuple(Advice(offset_bytes=o, candidates=OWN) for o in places)


def ask(
    cloud: Cloud, text: str | bytes, draft: str | bytes = b"", values: Values = ADA, **more: object
) -> tuple[Advice, ...]:
    answer, drafted = (t.encode() if isinstance(t, str) else t for t in (text, draft))
    question = Question(answer=answer, draft=drafted, **more)  # type: ignore[arg-type]
    return asyncio.run(masked(cloud, values)(question))  # type: ignore[arg-type]


def test_values_become_placeholders_and_offsets_come_back() -> None:
    cloud = Cloud()
    found = ask(cloud, "Dear ", "Ada King, so")
    (sent,) = cloud.asked
    assert (sent.answer, sent.draft) == (b"Dear ", b"[PERSON_1], so")
    assert [a.offset_bytes for a in found] == [5, *range(13, 18)]
    assert {a.candidates for a in found} == {OWN}
    assert cloud.reasons == ["verdict: mask"]
    assert egress_reason() == "verdict: allow"


@pytest.mark.parametrize("text", ["Dear A", "Dear Ada Kin", "my Ö", "my ÖZTÜR", "mr. king"])
def test_an_unfinished_value_is_not_sent(text: str) -> None:
    cloud = Cloud()
    assert ask(cloud, text) == ()
    assert cloud.asked == []


def test_a_draft_is_sent_up_to_where_a_value_may_begin() -> None:
    cloud = Cloud()
    found = ask(cloud, "I met", " Ada K")
    assert [(q.answer, q.draft) for q in cloud.asked] == [(b"I met", b" ")]
    assert [a.offset_bytes for a in found] == [5, 6]


def test_an_answer_that_ends_inside_a_value_is_asked_about_behind_it() -> None:
    cloud = Cloud()
    found = ask(cloud, "Dear Ada", " King: so")
    assert [(q.answer, q.draft) for q in cloud.asked] == [(b"Dear [PERSON_1]", b": so")]
    assert [a.offset_bytes for a in found] == [13, 14, 15, 16, 17]


def test_an_incomplete_character_waits_and_broken_bytes_go_through() -> None:
    cloud = Cloud()
    assert ask(cloud, "snow ❄".encode()[:-1]) == ()
    assert ask(cloud, b"a\xffb", b" c\xfe") != ()
    assert cloud.asked[-1].text == b"a\xffb c\xfe"
    assert ask(cloud, b"\xff", "Öztürk !".encode())[-1].offset_bytes == 11
    assert cloud.asked[-1].text == b"\xff[PERSON_2] !"


def test_ends_are_passed_on_only_where_nothing_is_masked() -> None:
    cloud = Cloud()
    ask(cloud, "so it", " is", ends=(2, 5, 8))
    assert cloud.asked[-1] == Question(answer=b"so it", draft=b" is", ends=(2, 5, 8))
    ask(cloud, "Ada King", " is", ends=(3, 8, 11))
    assert cloud.asked[-1] == Question(answer=b"[PERSON_1]", draft=b" is", ends=())


def test_what_is_cut_is_cut_at_an_end_of_a_token() -> None:
    cloud = Cloud()
    found = ask(cloud, "so it", " is Ada", ends=(2, 5, 8, 12))
    assert cloud.asked[-1] == Question(answer=b"so it", draft=b" is", ends=(2, 5, 8))
    assert [a.offset_bytes for a in found] == [5, 6, 7, 8]
    assert ask(cloud, "so Ad", ends=(2, 5)) == ()
    assert ask(cloud, "Ada King Ad", ends=(5, 11)) == ()  # the last end before it is in a value
    assert len(cloud.asked) == 1


def advice(offset: int, *candidates: tuple[bytes, float], said: bytes = b"") -> Advice:
    listed = tuple(Candidate(data=d, log_prob=p) for d, p in candidates)
    return Advice(offset_bytes=offset, candidates=listed, said=said)


@pytest.mark.parametrize("data", [b"[", b" [", b"([", b"[PER", b" [PERSON_1]", b" [PERSON_1],"])
def test_where_the_cloud_wants_a_placeholder_the_edge_is_alone(data: bytes) -> None:
    assert ask(Cloud(advice(4, (data, -0.1), (b" x", -3.0))), "Dear") == ()


def test_candidates_that_begin_a_placeholder_are_dropped() -> None:
    found = ask(Cloud(advice(4, (b" x", -0.5), (b" [", -1.0), (b" [1", -2.0))), "Dear")
    assert found == (advice(4, (b" x", -0.5), (b" [1", -2.0)),)
    begun = ask(Cloud(advice(6, (b" x", -0.5), (b"PER", -1.0), (b"1", -2.0))), "Dear [")
    assert begun == (advice(6, (b" x", -0.5), (b"1", -2.0)),)
    behind = ask(Cloud(advice(15, (b",", -0.5), (b" [b]", -1.0))), "Dear Ada King")
    assert behind == (advice(13, (b",", -0.5), (b" [b]", -1.0)),)


def test_advice_inside_a_placeholder_is_dropped() -> None:
    answers = [advice(o, (b"x", -0.1)) for o in range(6, 17)]
    found = ask(Cloud(*answers), "Dear ", "Ada King, ")
    assert [a.offset_bytes for a in found] == [13, 14]


def test_what_the_cloud_says_ahead_counts_up_to_its_first_placeholder() -> None:
    said = [
        advice(15, (b",", -0.1), said=b", "),
        advice(17, (b"so", -0.1), said=b"so "),
        advice(20, (b"[", -0.1), said=b"[PERS"),
        advice(25, (b"ON_2]", -0.1), said=b"ON_2] x"),
    ]
    found = ask(Cloud(*said), "Dear Ada King", ahead_bytes=256)
    assert [(a.offset_bytes, a.said) for a in found] == [(13, b", "), (15, b"so ")]
    cut = ask(Cloud(*said), "Dear Ada King", b" A", ahead_bytes=256)
    assert [a.offset_bytes for a in cut] == [13]


def test_a_place_with_no_candidates_keeps_what_was_said() -> None:
    found = ask(Cloud(advice(2, said=b" x"), advice(4, (b"[", -0.1), said=b"y")), "so")
    assert found == (advice(2, said=b" x"), advice(4, said=b"y"))


def test_a_guard_sees_the_masked_text_and_closes_for_good() -> None:
    gate = Gate(
        detectors=[RuleDetector()], draft_detectors=[RuleDetector()], max_chars=999, timeout_ms=999
    )
    cloud = Cloud()
    asked = masked(guarded(cloud, gate.inspect_draft), ADA)

    async def run() -> list[bool]:
        texts = ["Dear Ada King, ", "Dear Ada King, bob@example.org ", "Dear Ada King, "]
        return [bool(await asked(Question(answer=t.encode()))) for t in texts]

    assert asyncio.run(run()) == [True, False, False]
    assert [q.text for q in cloud.asked] == [b"Dear [PERSON_1], "]


def test_a_value_made_readable_by_a_placeholder_beside_it_is_not_sent() -> None:
    values = Values(
        [
            Value(text="415", placeholder="[PHONE_NUMBER_1]"),
            Value(text="King", placeholder="[PERSON_1]", is_word=True),
        ]
    )
    cloud = Cloud()
    assert ask(cloud, "King415 ", values=values) == ()
    assert cloud.asked == []


PIECES = ["a", "B", "ö", "王", "明", "😀", " ", "1", "-", "z", "ß", "İ", "."]
VALUE = st.lists(st.sampled_from(PIECES), min_size=2, max_size=6).map("".join)


@st.composite
def planted(draw: st.DrawFn) -> tuple[Request, Values, bytes]:
    """A request with findings at random values, and an answer made of them and of other text."""
    names = draw(st.lists(VALUE, min_size=1, max_size=3))
    text = " ... ".join(names)
    findings, at = [], 0
    for number, name in enumerate(names):
        entity = "PERSON" if number % 2 else "EMAIL_ADDRESS"
        findings.append(
            Finding(
                entity=entity,
                field="prompt",
                start=at,
                end=at + len(name),
                score=1.0,
                recogniser="t",
            )
        )
        at += len(name) + 5
    verdict = Verdict(action="mask", reason="", findings=tuple(findings))
    request, values = mask_request(Request(id="r", prompt=text), verdict)
    words = [*names, *(n.upper() for n in names), *(n[:-1] for n in names), *PIECES]
    answer = "".join(draw(st.lists(st.sampled_from(words), max_size=8)))
    return request, values, answer.encode()


def leaks(sent: bytes, held: bytes, values: Values) -> bool:
    """The slow twin: a value in what was sent, or one begun at its end, as far as `held` shows."""
    text, rest = (fold(t.decode("utf-8", "surrogateescape")) for t in (sent, _whole(held)))
    every = [fold(v.text) for v in values.values]
    begun = any(
        (text + rest)[at:] in (v[:n] for v in every for n in range(1, len(v)))
        for at in range(len(text))
    )
    return begun or any(fold(v.text) in text for v in values.values if not v.is_word)


def _whole(data: bytes) -> bytes:
    return data.decode("utf-8", "ignore").encode()


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_byte_of_a_value_is_sent_wherever_the_answer_is_cut(data: st.DataObject) -> None:
    try:
        request, values, whole = data.draw(planted())
    except CannotMask:
        return
    assert not any(fold(v.text) in fold(request.prompt or "") for v in values.values)
    longest = b""
    for cut in range(len(whole) + 1):
        start = data.draw(st.integers(0, cut))
        cloud = Cloud()
        found = ask(cloud, whole[:start], whole[start:cut], values)
        for sent in cloud.asked:
            assert not leaks(sent.text, whole[found[-1].offset_bytes : cut], values)
            assert sent.text.startswith(longest)  # what was sent before is never taken back
            longest = sent.text
        for place in found:
            assert start <= place.offset_bytes <= cut
        again = Cloud()
        assert ask(again, whole[:start], whole[start:cut], values) == found


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_places_of_the_masked_text_are_places_of_the_answer(data: st.DataObject) -> None:
    """The twin masks the answer up to a place by itself and compares."""
    try:
        _, values, whole = data.draw(planted())
    except CannotMask:
        return
    values = Values(v for v in values.values if not v.is_word)  # words depend on what follows
    cloud = Cloud()
    found = ask(cloud, b"", whole, values)
    placeholders = {fold(v.text): v.placeholder for v in reversed(values.values)}
    for sent in cloud.asked:
        for place in found:
            text = whole[: place.offset_bytes].decode("utf-8", "surrogateescape")
            cover = values.cover(text + "\n")  # no value holds a new line
            masked_text, at = "", 0
            for start, end, _ in cover.places:
                masked_text += text[at:start] + placeholders[fold(text[start:end])]
                at = end
            masked_text += text[at:]
            expected = masked_text.encode("utf-8", "surrogateescape")
            assert sent.text.startswith(expected)


def test_the_same_question_with_other_fields_keeps_them() -> None:
    cloud = Cloud()
    question = Question(answer=b"so", ahead_bytes=7)
    asyncio.run(masked(cloud, ADA)(question))
    assert cloud.asked == [replace(question, answer=b"so")]


# --- a whole request's life, over the real clients

SAID = "Dear Ada King, we wrote to ada@example.org. Bye, King!"
CLOUD_SAYS = "Dear [PERSON_1], we wrote to [EMAIL_ADDRESS_1] and so on."
PROMPT = "letter: I am Ada King, my mail is ada@example.org"


TENANTS = {
    "records": TenantConfig(policy="strict"),
    "research": TenantConfig(policy="custom", entities={"PERSON": "mask", "EMAIL_ADDRESS": "mask"}),
}


class Names:
    """Stands for the NER model."""

    name = "names"

    def find(self, text: str) -> list[Span]:
        at = text.find("Ada King")
        span = Span(entity="PERSON", start=at, end=at + 8, score=0.9, recogniser="names")
        return [span] if at >= 0 else []


class Base:
    """A router and an adapter cache with nothing in them."""

    def choose(self, request: Request) -> Route:
        return Route()

    @asynccontextmanager
    async def lease(
        self, route: Route, *, expected_tokens: int = 0, tenant: str = "default"
    ) -> AsyncIterator[Adapters]:
        yield ()


@dataclass
class Sent:
    """What left, in the clear: every string of every payload, base64 undone."""

    payloads: list[bytes] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def on_send(self, destination: str, payload: bytes, request_id: str) -> None:
        self.payloads.append(payload)
        self.reasons.append(egress_reason())

    def texts(self) -> list[str]:
        out = []
        for payload in self.payloads:
            data = json.loads(payload)
            said = [b64decode(data.pop(name, "")) for name in ("answer", "draft")]
            out += [m["content"] for m in data["messages"]]
            out += [json.dumps(data), b"".join(said).decode("utf-8", "ignore")]
        return out


def prompted(engine: ScriptedEngine) -> Callable[[Sequence[Message], str | None], list[int]]:
    return lambda messages, prompt: engine.tokenize(
        "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
        + "<|im_start|>assistant\n",
        special=True,
    )


async def live_request(
    kind: str,
    sent: Sent,
    policy: str = "balanced",
    mask: Mask | None = for_cloud,
    weight: float = 0.4,
    tenant: str = "default",
) -> list[Event]:
    """One request through `answer` with the real gate, fusers, clients and services."""
    small = ScriptedEngine(seed=1, answers={"letter": SAID}, ended=0.0)
    big = ScriptedEngine(seed=2, answers={"letter": CLOUD_SAYS}, ended=0.0)
    key: dict[str, Any] = {"on_send": sent.on_send, "budget_ms": 9000, "first_budget_ms": 9000}
    if kind == "openai":
        app = build_openai_upstream(engine=big, encode=prompted(big))
        key["client"] = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        cloud: AnyCloud = OpenAICloud(
            url="http://127.0.0.1/v1", model="big", continues="prefill", **key
        )
    else:
        app = build_logits_app(engine=big, encode=prompted(big), key=None)
        key["client"] = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        digest = small.info.tokenizer_digest if kind == "same tokenizer" else ""
        cloud = LogitCloud(url="http://127.0.0.1", tokenizer_digest=digest, **key)
    pieces = [small.token_bytes(i) for i in range(small.info.n_vocab)]
    eos_ids = small.info.eos_ids
    fusing: dict[str, Any] = {
        "weight": weight,
        "limits": Limits(budget_ms=9000, first_budget_ms=9000),
        "alignment": Alignment(token_bytes=pieces, eos_ids=eos_ids),
        "eos_ids": eos_ids,
        "token_bytes": small.token_bytes,
    }
    config = PrivacyConfig(policy=policy)  # type: ignore[arg-type]
    parts = Parts(
        gate=Gate(
            detectors=[RuleDetector(), Names()],
            draft_detectors=[RuleDetector()],
            max_chars=9999,
            timeout_ms=9999,
            policies=policies_of(config, TENANTS),
        ),
        router=Base(),
        adapters=Base(),
        engine=small,
        encode=lambda request: prompted(small)(request.messages, None),
        cloud=cloud,
        guard=guarded,
        fuse=CloudDraftsFuser(**fusing, tokenize=lambda data: small.tokenize(data.decode()))
        if kind == "openai"
        else SpeculativeFuser(**fusing),
        mask=mask,
    )
    request = Request(
        id="r",
        messages=(Message(role="user", content=PROMPT),),
        sampling=Sampling(max_tokens=60),
        tenant=tenant,
    )
    async with aclosing(answer(request, parts)) as events:
        seen = [event async for event in events]
    await cloud.close()
    assert small.open_sessions == big.open_sessions == 0
    return seen


KINDS = ["another tokenizer", "same tokenizer", "openai"]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_slm_sees_the_values_and_the_cloud_the_placeholders(kind: str) -> None:
    sent = Sent()
    events = await live_request(kind, sent)
    start, *tokens, end = events
    assert isinstance(start, Started) and isinstance(end, Finished)
    assert start.verdict.action == "mask"
    assert start.verdict.reason == "found EMAIL_ADDRESS, PERSON; masked"
    assert start.cloud == "127.0.0.1"
    drawn = [t.draw for t in tokens if isinstance(t, Token)]
    text = b"".join(d.data for d in drawn).decode()
    assert text.startswith("Dear Ada King, we wrote to ada@example.org")
    assert end.fused_tokens > 5
    at = 0
    for draw in drawn:
        in_name = 5 < at < 13
        in_mail = text.index("ada@") < at < text.index("ada@") + 15
        assert draw.origin == "edge" or not (in_name or in_mail)
        at += len(draw.data)
    shown = opening_facts(start)["verdict"]
    assert shown == {
        "action": "mask",
        "reason": "found EMAIL_ADDRESS, PERSON; masked",
        "entities": ["EMAIL_ADDRESS", "PERSON"],
    }
    assert sent.payloads
    assert set(sent.reasons) == {"verdict: mask (EMAIL_ADDRESS, PERSON)"}
    assert "letter: I am [PERSON_1], my mail is [EMAIL_ADDRESS_1]" in sent.texts()
    leak = re.compile(r"ada king|ada@|@example|\bada\b|\bking\b", re.IGNORECASE)
    assert not any(leak.search(t) for t in sent.texts())
    if kind != "openai":
        assert any("Dear [PERSON_1], we wrote to [EMAIL_ADDRESS_1]" in t for t in sent.texts())


@pytest.mark.parametrize("kind", KINDS)
async def test_b20_strict_sends_nothing(kind: str) -> None:
    sent = Sent()
    events = await live_request(kind, sent, policy="strict")
    start = events[0]
    assert isinstance(start, Started)
    assert (start.verdict.action, start.cloud, sent.payloads) == ("local", "", [])


async def test_without_a_mask_the_text_to_mask_stays_here() -> None:
    sent = Sent()
    start = (await live_request("another tokenizer", sent, mask=None))[0]
    assert isinstance(start, Started)
    assert (start.verdict.action, start.cloud, sent.payloads) == ("mask", "", [])


def said(events: list[Event]) -> bytes:
    return b"".join(e.draw.data for e in events if isinstance(e, Token))


@pytest.mark.parametrize("kind", KINDS)
async def test_b19_masking_for_the_cloud_never_rewrites_the_user_s_answer(kind: str) -> None:
    """At such a weight the SLM alone decides: what the cloud is shown must not change a byte."""
    sent = Sent()
    masked_answer = said(await live_request(kind, sent, weight=0.999999))
    kept_answer = said(await live_request(kind, Sent(), weight=0.999999, policy="strict"))
    assert sent.payloads
    assert masked_answer == kept_answer == SAID.encode()


async def test_b16_an_answer_with_values_is_the_same_in_a_stream_and_as_a_whole() -> None:
    """Nothing is masked on the way to the user, so there is nothing that could be masked twice."""
    events = await live_request("another tokenizer", Sent())
    pieces = "".join(e.text for e in events if isinstance(e, Token | Finished))
    assert pieces.encode() == said(events)
    assert "[" not in pieces
    assert pieces.startswith("Dear Ada King, we wrote to ada@example.org")


@pytest.mark.parametrize(
    ("policy", "tenant", "action"),
    [
        ("balanced", "records", "local"),
        ("balanced", "nobody", "local"),
        ("balanced", "default", "mask"),
        ("strict", "research", "mask"),
        ("strict", "default", "local"),
    ],
)
async def test_the_policy_of_the_request_s_tenant_decides(
    policy: str, tenant: str, action: str
) -> None:
    sent = Sent()
    start = (await live_request("another tokenizer", sent, policy=policy, tenant=tenant))[0]
    assert isinstance(start, Started)
    assert start.verdict.action == action
    assert bool(sent.payloads) == (action == "mask")
