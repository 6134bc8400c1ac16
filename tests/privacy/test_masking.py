"""Placeholders for private values: the way back is the identity, and nothing private remains."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floe.core.request import Message, Request
from floe.core.verdict import Finding, Verdict
from floe.privacy.detector import RuleDetector
from floe.privacy.masking import CannotMask, Masking, mask_request, mask_texts, merged
from floe.privacy.policy import ENTITIES
from floe.privacy.restore import Restorer, in_json, restored
from floe.privacy.values import Value, Values, fold


def finding(
    entity: str, start: int, end: int, field: str = "prompt", score: float = 0.9
) -> Finding:
    return Finding(entity=entity, field=field, start=start, end=end, score=score, recogniser="test")


def found(text: str, *values: tuple[str, str], field: str = "prompt") -> list[Finding]:
    """A finding at the first place of each value."""
    return [finding(e, text.index(v), text.index(v) + len(v), field) for e, v in values]


def masked(text: str, *values: tuple[str, str]) -> Masking:
    return mask_texts([("prompt", text)], found(text, *values))


def text_of(masking: Masking) -> str:
    return masking.texts["prompt"].text


def test_equal_values_have_one_number_and_every_place_is_masked() -> None:
    text = "Ada King wrote to Bob Moe. Bob Moe and ADA KING met; ada@x.org."
    masking = masked(
        text, ("PERSON", "Ada King"), ("PERSON", "Bob Moe"), ("EMAIL_ADDRESS", "ada@x.org")
    )
    assert text_of(masking) == (
        "[PERSON_1] wrote to [PERSON_2]. [PERSON_2] and [PERSON_1_4] met; [EMAIL_ADDRESS_1]."
    )
    assert masking.texts["prompt"].original() == text
    assert restored(text_of(masking), masking.values) == text


def test_a_word_of_a_name_is_masked_where_it_stands_alone() -> None:
    text = "I am Maria von Keller. Ms. Keller likes marianas; yours, maria"
    masking = masked(text, ("PERSON", "Maria von Keller"))
    assert text_of(masking) == (
        "I am [PERSON_1]. Ms. [PERSON_1_3] likes marianas; yours, [PERSON_1_4]"
    )
    assert restored(text_of(masking), masking.values) == text


def test_a_name_found_alone_too_has_the_number_of_the_whole_one() -> None:
    text = "Dear Keller, Maria Keller and Bob Keller"
    masking = masked(
        text, ("PERSON", "Keller"), ("PERSON", "Maria Keller"), ("PERSON", "Bob Keller")
    )
    assert text_of(masking) == "Dear [PERSON_1], [PERSON_1_2] and [PERSON_2]"
    assert restored(text_of(masking), masking.values) == text


def test_numbers_go_through_all_the_messages_and_roles_stay() -> None:
    request = Request(
        id="r",
        messages=(
            Message(role="system", content="You help Ada King."),
            Message(role="user", content="Ada King asks Bob Moe"),
        ),
    )
    findings = [
        finding("PERSON", 9, 17, "messages[0].content"),
        finding("PERSON", 14, 21, "messages[1].content"),
    ]
    sent, values = mask_request(
        request, Verdict(action="mask", reason="", findings=tuple(findings))
    )
    assert [(m.role, m.content) for m in sent.messages] == [
        ("system", "You help [PERSON_1]."),
        ("user", "[PERSON_1] asks [PERSON_2]"),
    ]
    assert (sent.id, sent.sampling) == (request.id, request.sampling)
    assert values.held_in("to Ada King")
    prompt = Request(id="r", prompt="for Ada King")
    sent, _ = mask_request(
        prompt, Verdict(action="mask", reason="", findings=(finding("PERSON", 4, 12),))
    )
    assert sent.prompt == "for [PERSON_1]"


def test_b11_overlapping_findings_become_one() -> None:
    text = "ask Lena's brother"
    spans = [finding("PERSON", 4, 8), finding("PERSON", 4, 10), finding("GPE", 7, 10, score=0.6)]
    assert merged(spans, text) == [("PERSON", 4, 10)]
    partial = [finding("PHONE_NUMBER", 0, 8), finding("US_SSN", 4, 11)]
    assert merged(partial, "01234567890") == [("PHONE_NUMBER", 0, 11)]
    equal = [finding("PHONE_NUMBER", 0, 8, score=0.5), finding("US_SSN", 0, 8, score=0.9)]
    assert merged(equal, "01234567890") == [("US_SSN", 0, 8)]


def test_b14_a_name_in_two_parts_is_one_placeholder_restored_once() -> None:
    text = "Jürgen Öztürk, Jürgen Öztürk"
    masking = mask_texts([("prompt", text)], [finding("PERSON", 0, 6), finding("PERSON", 7, 13)])
    assert text_of(masking) == "[PERSON_1], [PERSON_1]"
    assert restored(text_of(masking), masking.values) == text


def test_white_space_is_no_part_of_a_value() -> None:
    masking = mask_texts([("prompt", "by  Ada King \n")], [finding("PERSON", 2, 14)])
    assert text_of(masking) == "by  [PERSON_1] \n"
    assert text_of(mask_texts([("prompt", "a  b")], [finding("PERSON", 1, 3)])) == "a  b"


def test_placeholders_that_the_user_wrote_are_not_used_again() -> None:
    text = "fill in [PERSON_1] and [PERSON_2_2] for Ada King"
    masking = masked(text, ("PERSON", "Ada King"))
    assert text_of(masking) == "fill in [PERSON_1] and [PERSON_2_2] for [PERSON_3]"
    assert restored(text_of(masking), masking.values) == text


def test_b16_a_restored_value_is_not_looked_at_again() -> None:
    values = Values(
        [Value(text="see [B_1]", placeholder="[A_1]"), Value(text="xyz", placeholder="[B_1]")]
    )
    assert restored("[A_1] [B_1]", values) == "see [B_1] xyz"


@pytest.mark.parametrize(
    ("text", "values", "reason"),
    [
        ("I am Li", [("PERSON", "Li")], "too short"),
        ("I am 王 here", [("PERSON", "王")], "too short"),
        ("I am person here", [("PERSON", "person")], "still be readable"),
        ("mail Ada King", [("PERSON", "Ada King"), ("URL", "mail")], "still be readable"),
    ],
)
def test_what_cannot_be_masked_is_refused(
    text: str, values: list[tuple[str, str]], reason: str
) -> None:
    if reason == "still be readable" and "mail" in text:
        text, values = "x[PERSON_ Ada King", [("PERSON", "Ada King"), ("URL", "[PERSON_")]
    with pytest.raises(CannotMask, match=reason) as error:
        masked(text, *values)
    assert not any(value in str(error.value) for _, value in values)


def test_too_many_values_are_refused() -> None:
    text = " ".join(f"a{n:04d}" for n in range(257))
    spans = [finding("US_SSN", 6 * n, 6 * n + 5) for n in range(257)]
    with pytest.raises(CannotMask, match="more than 256 values"):
        mask_texts([("prompt", text)], spans)


def test_chinese_names_need_no_spaces() -> None:
    text = "我叫王小明，请王小明签字"
    masking = masked(text, ("PERSON", "王小明"))
    assert text_of(masking) == "我叫[PERSON_1]，请[PERSON_1]签字"


def test_placeholders_of_all_entities_are_clean_to_the_rules() -> None:
    for entity in ENTITIES:
        for n in (1, 23):
            assert RuleDetector().find(f"my {entity.lower()} number is [{entity}_{n}].") == []


def test_folding_keeps_places() -> None:
    text = "İÖẞΣſK ας"
    assert len(fold(text)) == len(text)
    assert fold("ΑΣ") == fold("ας")
    for n in range(len(text) + 1):
        assert fold(text)[:n] == fold(text[:n])


WORDS = st.text(st.sampled_from("abAB çÖ王明😀[]_1.\n"), max_size=40)
SPANS = st.lists(
    st.tuples(
        st.sampled_from(["PERSON", "EMAIL_ADDRESS", "X y"]), st.integers(0, 39), st.integers(1, 9)
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(SPANS, min_size=3, max_size=3))
@example(["abab", "ab a", "a"], [[("PERSON", 0, 3)], [("X y", 0, 2)], []])
def test_b10_b11_b14_masking_and_back_is_the_identity(
    texts: list[str], spans: list[list[tuple[str, int, int]]]
) -> None:
    pairs = [(f"messages[{i}].content", text) for i, text in enumerate(texts)]
    findings = [
        finding(entity, start, min(start + length, len(text)), field)
        for (field, text), some in zip(pairs, spans, strict=False)
        for entity, start, length in some
        if start < len(text)
    ]
    try:
        masking = mask_texts(pairs, findings)
    except CannotMask:
        return
    for field, text in pairs:
        assert masking.texts[field].original() == text
        assert restored(masking.texts[field].text, masking.values) == text
        sent = fold(masking.texts[field].text)
        for value in masking.values.values:
            assert value.is_word or fold(value.text) not in sent
    placeholders = [v.placeholder for v in masking.values.values]
    assert (
        len(set(placeholders)) == len(placeholders) == len({v.text for v in masking.values.values})
    )


VALUES = Values(
    [
        Value(text="Ada King", placeholder="[PERSON_1]"),
        Value(text="+1 415 555 2671", placeholder="[PHONE_NUMBER_1]"),
    ]
)


@given(
    st.lists(
        st.sampled_from(["[", "[PERSON_1]", "[PERSON_", "1]", "word ", "[PHONE_NUMBER_1]", "]"])
    ),
    st.lists(st.integers(1, 7)),
)
def test_a_stream_is_restored_like_the_whole(parts: list[str], cuts: list[int]) -> None:
    """The twin sees the whole text at once."""
    text = "".join(parts)
    restorer, out, at = Restorer(VALUES), [], 0
    for cut in [*cuts, len(text)]:
        out.append(restorer.feed(text[at : at + cut]))
        at += cut
    assert "".join(out) + restorer.finish() == text.replace("[PERSON_1]", "Ada King").replace(
        "[PHONE_NUMBER_1]", "+1 415 555 2671"
    )


def test_b17_a_stream_of_300_tokens_is_not_held_back() -> None:
    tokens = [f"word{n} " for n in range(150)] + ["[PER", "SON_", "1] "] + ["more "] * 147
    restorer = Restorer(VALUES)
    chunks = [restorer.feed(token) for token in tokens]
    assert chunks[0] == "word0 "
    assert sum(not chunk for chunk in chunks) == 2  # only while the placeholder comes in
    assert chunks[152] == "Ada King "


def test_a_chinese_introduction_is_masked() -> None:
    text = "我叫李小明，住在北京市朝阳区建国路88号。李小明是学生。"
    findings = [finding(s.entity, s.start, s.end) for s in RuleDetector().find(text)]
    masking = mask_texts([("prompt", text)], findings)
    assert text_of(masking) == "我叫[PERSON_1]，住在[STREET_ADDRESS_1]。[PERSON_1]是学生。"


@given(
    st.lists(st.sampled_from(["[", "[PERSON_1]", "[PERSON_", "1]", "x", "[PHONE_NUMBER_1]"])),
    st.lists(st.integers(1, 7)),
)
def test_b17_never_as_much_waits_as_the_longest_placeholder(
    parts: list[str], cuts: list[int]
) -> None:
    text, restorer, at = "".join(parts), Restorer(VALUES), 0
    longest = max(len(v.placeholder) for v in VALUES.values)
    for cut in [*cuts, len(text)]:
        restorer.feed(text[at : at + cut])
        at += cut
        assert restorer.held_chars < longest


JSON_VALUE = st.text(st.sampled_from('aß王😀"\\/\n\t\x00\u2028{}[]'), min_size=3, max_size=8)


@settings(deadline=None)
@given(JSON_VALUE, st.lists(st.integers(1, 5), max_size=20))
def test_values_are_escaped_in_the_arguments_of_a_tool(value: str, cuts: list[int]) -> None:
    """The twin parses the arguments first and puts the value in afterwards."""
    values = Values([Value(text=value, placeholder="[PERSON_1]")])
    said = json.dumps({"to": "[PERSON_1]", "n": 1, "text": "dear [PERSON_1], hello [PERSON_2]"})
    restorer, out, at = Restorer(values, form=in_json), [], 0
    for cut in [*cuts, len(said)]:
        out.append(restorer.feed(said[at : at + cut]))
        at += cut
    arguments = json.loads("".join(out) + restorer.finish())
    twin = {k: restored(v, values) if k != "n" else v for k, v in json.loads(said).items()}
    assert arguments == twin
    assert restored(said, values, form=in_json) == "".join(out) + restorer.finish()


NAMES = ["Ada King", "Bob Moe", "Zoë Öztürk", "王小明", "+1 415 555 2671", "x@y.example"]


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=3), min_size=2, max_size=5))
def test_a_value_keeps_its_number_as_a_conversation_grows(turns: list[list[str]]) -> None:
    """Clients send the history again: what a value was called in it does not change."""
    texts = [(f"messages[{i}].content", f"say {'; '.join(t)}.") for i, t in enumerate(turns)]
    findings = [
        finding("PERSON", text.index(name), text.index(name) + len(name), field)
        for (field, text), names in zip(texts, turns, strict=True)
        for name in set(names)
    ]
    before: dict[str, str] = {}
    for n in range(1, len(texts) + 1):
        fields = {field for field, _ in texts[:n]}
        masking = mask_texts(texts[:n], [f for f in findings if f.field in fields])
        called = {v.text: v.placeholder for v in masking.values.values if v.text in NAMES}
        assert called.items() >= before.items()
        before = called


@pytest.mark.parametrize(
    "value", ["Ada%20King", "&#65;da King", "QWRhIEtpbmcgQWRhIEtpbmc=", "\\u0041da King"]
)
def test_a_value_that_stands_there_encoded_is_not_masked(value: str) -> None:
    with pytest.raises(CannotMask, match="a value is encoded") as error:
        masked(f"I am {value} today", ("PERSON", value))
    assert value not in str(error.value)


@pytest.mark.parametrize("value", ["Ａｄａ Ｋｉｎｇ", "A\u200bd\u200ba King"])
def test_the_plain_spelling_of_a_disguised_value_is_a_value(value: str) -> None:
    masking = masked(f"I am {value} today", ("PERSON", value))
    assert text_of(masking) == "I am [PERSON_1] today"
    assert masking.values.held_in("Dear Ada King")
    assert restored(text_of(masking), masking.values) == f"I am {value} today"
