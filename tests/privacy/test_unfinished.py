"""No long beginning of a value is sent, wherever an answer stands; ordinary text is not held up."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floe.core.advice import Advice, Question
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.guard import guarded
from floe.privacy.unfinished import safe_end
from floe.testing.leak_cases import ANSWER_KINDS
from floe.testing.leak_values import SAYINGS, VALUES

PIECE_CHARS = 8
BEFORE = ["", "So: ", "The answer is as follows. ", "好的。", "Dear friend, "]
BEHIND = ["", ".", " and more text follows here.", "。谢谢", "\n\n"]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ANSWER_KINDS),
    st.integers(0, 10**6),
    st.sampled_from(BEFORE),
    st.sampled_from(BEHIND),
)
def test_no_eight_characters_of_a_value_are_sent_at_any_cut(
    kind: str, seed: int, before: str, behind: str
) -> None:
    rng = random.Random(seed)
    value = VALUES[kind](rng)
    text = before + rng.choice(SAYINGS[kind]).format(value) + behind
    gate = Gate(
        detectors=[RuleDetector()], draft_detectors=[RuleDetector()], max_chars=999, timeout_ms=999
    )
    sent: list[str] = []

    async def cloud(question: Question) -> tuple[Advice, ...]:
        sent.append(question.text.decode("utf-8", "ignore"))
        return ()

    async def run() -> None:
        ask, data = guarded(cloud, gate.inspect_draft), text.encode()
        for cut in range(len(data) + 1):
            await ask(Question(answer=data[: max(0, cut - 5)], draft=data[max(0, cut - 5) : cut]))

    asyncio.run(run())
    assert sent  # what stands before the value is sent
    pieces = {value[i : i + PIECE_CHARS] for i in range(len(value) - PIECE_CHARS + 1)}
    assert not any(piece in said for said in sent for piece in pieces)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("my card is 4111 11", "4111 11"),
        ("call +4930", "+4930"),
        ("call (415) 555-2", "(415) 555-2"),
        ("my card is 4111\n1111\n", "4111\n1111\n"),
        ("手机 138_1234", "138_1234"),
        ("IBAN DE89\n3704\n", "DE89\n3704\n"),
        ("IBAN DE89 37", "DE89 37"),
        ("mail ada.king@exa", "ada.king@exa"),
        ("mail ada (at) exa", "ada (at) exa"),
        ("use https://bob:hun", "bob:hun"),
        ("the key sk-ab", "sk-ab"),
        ("a key AB12CD", "AB12CD"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----\nMIIE"),
        ("the password is hun", "hun"),
        ("密码：hun", "hun"),
        ("mac 00:1a:2b", "00:1a:2b"),
        ("at 48.85661, 2.3", "48.85661, 2.3"),
        ("born on 12 March 19", " on 12 March 19"),
        ("在杭州市西湖区文", "在杭州市西湖区文"),
        ("地址：文化路38", "文化路38"),
        ("＋４９３０", "＋４９３０"),
        ("电话１３８１２３４", "１３８１２３４"),
    ],
)
def test_what_may_become_a_value_waits(text: str, held: str) -> None:
    assert text[safe_end(text) :] == held
    if "BEGIN" not in text:  # a key goes on over many lines
        assert safe_end(text + " and so on, says everybody here. ") == len(text) + 33


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 * 12 = 60",
        "in 1995 and 2026",
        "1,000,000 people",
        "price 19.99",
        "1\n2\n3\n4",
        "version 2.11.3",
        "The quick brown fox",
        "an e-mail to a friend",
        "GPT-4o",
        "def add(a, b):\n    return a + b",
        "the password is",
        "中国的首都是北京市",
        "H2O and CO2",
        "3/4 of 100%",
    ],
)
def test_ordinary_text_does_not_wait(text: str) -> None:
    assert safe_end(text) == len(text)


@given(st.text(st.sampled_from("a1@ .-:+京市区Ａ１\u200b\u0301[]_=/\n"), max_size=60))
@example("\u0301" * 50)
def test_the_end_is_a_place_in_the_text_and_stays_where_it_is(text: str) -> None:
    end = safe_end(text)
    assert 0 <= end <= len(text)
    assert safe_end(text[:end]) <= end
