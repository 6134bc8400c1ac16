"""The decoded copy, its way back, and what rules find through it."""

from __future__ import annotations

import base64
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.privacy.decoding import decoded
from floe.privacy.detector import RuleDetector
from floe.privacy.normalise import normalise

DETECTOR = RuleDetector()


def found(text: str) -> list[tuple[str, str]]:
    return [(s.entity, text[s.start : s.end]) for s in DETECTOR.find(text) if s.score >= 0.5]


@pytest.mark.parametrize(
    "value",
    [
        "&#97;lice&#64;example.com",
        "&#x61;lice&#x40;example&#46;com",
        "alice&commat;example&period;com",
        "&#97lice&#64example.com",
        "alice%40example.com",
        "%61%6c%69%63%65%40%65%78%61%6d%70%6c%65%2e%63%6f%6d",
        "alice\\u0040example.com",
        "alice\\x40example.com",
        base64.b64encode(b"alice@example.com").decode(),
        base64.b64encode(b"alice@example.com").decode().rstrip("="),
        base64.urlsafe_b64encode(b"write to alice@example.com, ok?~~").decode(),
        "alice\u200b%40example.com",
    ],
)
def test_an_encoded_address_is_found_as_it_stands(value: str) -> None:
    assert found(f"to <{value}> now") == [("EMAIL_ADDRESS", value)]


def test_an_encoded_query_is_found() -> None:
    query = urllib.parse.quote("我叫张伟")
    assert [e for e, _ in found(f"https://x.example/?q={query}")] == ["PERSON"]
    mail = base64.b64encode(b"alice@example.com").decode()
    assert [e for e, _ in found(f"https://x.example/?m={mail}")] == ["EMAIL_ADDRESS"]


def test_base64_in_lines_is_read_as_one() -> None:
    text = "The usual words of a letter. " * 3 + "card 4111 1111 1111 1111, 手机13812345678 bye"
    for count in range(20):
        run = base64.encodebytes(("." * count + text).encode()).decode().strip()
        assert [e for e, _ in found(f"see:\n{run}\nend")][:1] == ["CREDIT_CARD"]
    mail = base64.b64encode(b"please write to alice@example.com soon").decode()
    assert found(f"{mail}\nand no base64 here") == [("EMAIL_ADDRESS", mail)]


def test_two_addresses_in_one_run_are_one_finding() -> None:
    run = base64.b64encode(b"alice@example.com, bob@example.com").decode()
    assert found(run) == [("EMAIL_ADDRESS", run)]


@pytest.mark.parametrize(
    "text",
    [
        "internationalization of /usr/share/locale/languages",
        "AT&amp;T costs 50%20 of &lt;b&gt; in %E4%BD%A0%E5%A5%BD and %ff",
        base64.b64encode(b"nothing private stands here").decode(),
        "printf('%02x%d', '\\x00\\u0000') && a&b; &nosuch;",
    ],
)
def test_other_encoded_text_gives_no_finding(text: str) -> None:
    assert found(text) == []


def test_plain_text_has_no_second_copy() -> None:
    assert decoded(normalise("plain text, 100 % of it & more; &nosuch; %ff \\n")) is None


@settings(deadline=None)
@given(st.text(alphabet="a@é中\u200b٣+<%&;", max_size=8))
def test_the_copy_is_that_of_the_plain_text(text: str) -> None:
    """The twin normalises what was there before it was encoded."""
    plain = normalise(text).text
    for encoded in (
        "".join(f"&#{ord(c)};" for c in text),
        urllib.parse.quote(text, safe=""),
    ):
        copy = normalise(encoded)
        second = decoded(copy) or copy
        assert second.text == plain


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["%40", "%E4%BD%A0", "&#64;", "&#x200b;", "&amp;", "\\u0301", "\\ud800", "\u200b", "é"]
        )
        | st.binary(min_size=9, max_size=20).map(lambda b: base64.b64encode(b).decode())
        | st.text(max_size=5),
        max_size=8,
    )
)
def test_every_span_of_the_copy_lies_in_the_original(bits: list[str]) -> None:
    text = "".join(bits)
    copy = decoded(normalise(text))
    if copy is None:
        return
    assert len(copy.starts) == len(copy.ends) == len(copy.text)
    assert all(0 <= a < b <= len(text) for a, b in zip(copy.starts, copy.ends, strict=True))
    assert list(copy.starts) == sorted(copy.starts)
    assert list(copy.ends) == sorted(copy.ends)
