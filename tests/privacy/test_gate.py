"""Closed by default: every way to fail ends in "local", and the reason holds no text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import FloeError
from floe.core.sections import PrivacyConfig
from floe.privacy.base import Span
from floe.privacy.deadline import DeadlineRunner
from floe.privacy.detector import RuleDetector
from floe.privacy.draft import DraftMemory
from floe.privacy.explain import explain
from floe.privacy.gate import Gate
from floe.privacy.policy import policy_of

SECRET = "alice@example.com"


def span(start: int = 0, end: int = 3, score: float = 0.9) -> Span:
    return Span(entity="PERSON", start=start, end=end, score=score, recogniser="fake")


class Fake:
    """A detector that does what it is told and remembers what it saw."""

    name = "fake"

    def __init__(self, act: Callable[[str], Sequence[Span]] = lambda text: []) -> None:
        self._act = act
        self.seen: list[str] = []

    def find(self, text: str) -> Sequence[Span]:
        self.seen.append(text)
        return self._act(text)


def raises(error: Exception) -> Callable[[str], Sequence[Span]]:
    def act(text: str) -> Sequence[Span]:
        raise error

    return act


def gate(*detectors: Fake | RuleDetector, timeout_ms: int = 5000, max_chars: int = 1000) -> Gate:
    return Gate(
        detectors=detectors,
        draft_detectors=detectors,
        max_chars=max_chars,
        timeout_ms=timeout_ms,
        runner=DeadlineRunner(max_threads=2),
    )


@pytest.mark.parametrize(
    "text",
    [
        "我住在北京市朝阳区建国路88号，我叫李小明",
        "我叫张伟",
        "车牌京A12345",
        "mail alice (at) example.com",
        "mail &#97;lice&#64;example.com",
        "mail YWxpY2VAZXhhbXBsZS5jb20=",
        "Pan ABCDE1234F",
    ],
)
def test_a_person_in_chinese_or_encoded_stays_here(text: str) -> None:
    assert gate(RuleDetector()).inspect([("prompt", text)]).action == "local"


def test_clean_texts_may_leave() -> None:
    verdict = gate(RuleDetector()).inspect([("prompt", "What is 2 + 2?")])
    assert (verdict.action, verdict.reason) == ("allow", "nothing private found")
    assert gate(RuleDetector()).inspect([]).may_leave


def test_findings_name_their_field_and_place() -> None:
    texts = [
        ("messages[0].content", "hello"),
        ("messages[1].content", f"mail {SECRET} or 4111111111111111"),
    ]
    verdict = gate(RuleDetector()).inspect(texts)
    assert verdict.action == "local"
    assert verdict.reason == "found CREDIT_CARD, EMAIL_ADDRESS"
    assert [(f.field, f.entity, f.start, f.end) for f in verdict.findings] == [
        ("messages[1].content", "EMAIL_ADDRESS", 5, 22),
        ("messages[1].content", "CREDIT_CARD", 26, 42),
    ]
    rows = explain(verdict, texts)
    assert [(r.recogniser, r.text) for r in rows] == [
        ("email", SECRET),
        ("credit_card", "4111111111111111"),
    ]


def test_low_scores_do_not_count_and_the_first_decision_stops() -> None:
    low, high, last = Fake(lambda t: [span(score=0.49)]), Fake(lambda t: [span(score=0.5)]), Fake()
    assert gate(low).inspect([("prompt", "abc")]).may_leave
    assert not gate(low, high, last).inspect([("prompt", "abc")]).may_leave
    assert last.seen == []


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (raises(ValueError(SECRET)), "detector fake failed (ValueError)"),
        (raises(MemoryError(SECRET)), "detector fake failed (MemoryError)"),
        (raises(TimeoutError(SECRET)), "detector fake failed (TimeoutError)"),
        (lambda text: None, "detector fake failed (TypeError)"),
        (lambda text: ["x"], "detector fake failed (AttributeError)"),
        (lambda text: [span(start=-1)], "detector fake failed (ValueError)"),
        (lambda text: [span(end=10_000)], "detector fake failed (ValueError)"),
        (lambda text: [span(start=2, end=2)], "detector fake failed (ValueError)"),
        (lambda text: [span(score=float("nan"))], "detector fake failed (ValueError)"),
    ],
)
def test_b22_a_failing_detector_means_local(
    act: Callable[[str], Sequence[Span]], reason: str
) -> None:
    closed = gate(Fake(act))
    for verdict in (closed.inspect([("prompt", SECRET)]), closed.inspect_draft(SECRET)):
        assert verdict.action == "local"
        assert verdict.reason == reason
        assert SECRET not in repr(verdict)


def test_b22_a_stuck_detector_blocks_no_request_and_threads_stay_bounded() -> None:
    release = threading.Event()

    def wait(text: str) -> Sequence[Span]:
        release.wait()
        return []

    stuck = Fake(wait)
    closed = gate(stuck, timeout_ms=10)
    before = threading.active_count()
    reasons = {closed.inspect([("prompt", SECRET)]).reason for _ in range(6)}
    assert threading.active_count() - before == 2
    assert reasons == {
        "detector fake did not finish within 10 ms",
        "the detectors did not finish within 10 ms",
    }
    release.set()


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([("prompt", "x" * 1001)], "1001 characters are more than privacy.max_chars (1000)"),
        ([("a", "x" * 600), ("b", "x" * 600)], "1200 characters are more than"),
        ([("prompt", None)], "the request holds a text that is not text"),
        ([("prompt", b"abc")], "the request holds a text that is not text"),
        ([("prompt",)], "the request's texts cannot be read (ValueError)"),
        (None, "the request's texts cannot be read (TypeError)"),
    ],
)
def test_what_cannot_be_inspected_stays(texts: object, reason: str) -> None:
    verdict = gate(Fake()).inspect(texts)  # type: ignore[arg-type]
    assert verdict.action == "local"
    assert verdict.reason.startswith(reason)


def test_texts_that_can_be_read_only_once_are_read() -> None:
    verdict = gate(RuleDetector()).inspect(pair for pair in [("prompt", SECRET)])  # type: ignore[arg-type]
    assert verdict.reason == "found EMAIL_ADDRESS"


def test_b20_no_detectors_mean_local() -> None:
    empty = gate()
    assert empty.inspect([("prompt", "hi")]).reason == "there are no detectors"
    assert empty.inspect_draft("hi").action == "local"


def test_a_draft_too_long_stays() -> None:
    assert gate(Fake()).inspect_draft("x" * 1001).action == "local"


def test_a_growing_draft_is_not_read_again() -> None:
    fake = Fake()
    growing = gate(fake, max_chars=100_000)
    text = "word " * 1000
    assert growing.inspect_draft(text).may_leave
    assert growing.inspect_draft(text + "more").may_leave
    assert len(fake.seen[0]) == 5000
    assert len(fake.seen[1]) < 1100
    assert growing.inspect_draft("another").may_leave
    assert fake.seen[2] == "another"


def test_the_place_in_a_draft_is_that_of_the_whole_text() -> None:
    growing = gate(RuleDetector(), max_chars=100_000)
    text = "word " * 1000
    assert growing.inspect_draft(text).may_leave
    (finding,) = growing.inspect_draft(text + SECRET).findings
    assert (finding.start, finding.end) == (5000, 5000 + len(SECRET))


_PIECES = st.lists(
    st.sampled_from(
        [
            "word ",
            "4111 1111 ",
            "1111",
            " 1111 ",
            "alice@",
            "exam",
            "ple.com ",
            "call ",
            "415-555-",
            "2671 ",
            "的电话",
            "138",
            "1234",
            "5678 ",
            "password",
            " = ",
            "hunter2 ",
            "pad " * 300,
            "x" * 1500,
            "\n",
        ]
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(_PIECES)
def test_incremental_drafts_decide_like_whole_ones(pieces: list[str]) -> None:
    """The twin inspects the whole text each time; both stop at the first "local"."""
    growing, text = gate(RuleDetector(), max_chars=10**6), ""
    for piece in pieces:
        text += piece
        whole = gate(RuleDetector(), max_chars=10**6).inspect_draft(text)
        part = growing.inspect_draft(text)
        assert part == whole
        if not whole.may_leave:
            break


def test_the_memory_of_drafts_is_bounded() -> None:
    memory = DraftMemory()
    texts = [f"{i:04d} " * 1000 for i in range(100)]
    for text in texts:
        memory.remember(text)
    assert sum(memory.tail_start(text) > 0 for text in texts) == 64


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=10), st.text(max_size=60)), max_size=4))
def test_b13_the_gate_never_raises(texts: list[tuple[str, str]]) -> None:
    verdict = gate(RuleDetector()).inspect(texts)
    assert verdict.may_leave == (not verdict.findings) or "over the border" in verdict.reason


@pytest.mark.parametrize("between", [[], ["Go on."]])
@pytest.mark.parametrize(
    ("first", "second", "entity"),
    [
        ("my card is 4111 1111", "1111 1111, thanks", "CREDIT_CARD"),
        ("my card is 4111 1111\n", " 1111 1111", "CREDIT_CARD"),
        ("mail alice@exam", "ple.com please", "EMAIL_ADDRESS"),
        ("电话138", "12345678。", "PHONE_NUMBER"),
    ],
)
def test_a_value_cut_by_the_border_of_two_messages_stays(
    first: str, second: str, entity: str, between: list[str]
) -> None:
    texts = [(f"messages[{i}].content", t) for i, t in enumerate([first, *between, second])]
    assert gate(RuleDetector()).inspect([texts[0]]).may_leave
    verdict = gate(RuleDetector()).inspect(texts)
    assert (verdict.action, verdict.findings) == ("local", ())
    assert entity in verdict.reason
    assert "over the border of two texts" in verdict.reason


def test_the_half_of_a_value_that_looks_like_another_is_not_masked_alone() -> None:
    """Found by the leak test: the second half was masked as a telephone number."""

    class Phones:
        name = "phones"

        def find(self, text: str) -> list[Span]:
            at = text.find("1111 1111")
            found = Span(entity="PHONE_NUMBER", start=at, end=at + 9, score=0.9, recogniser="t")
            return [found] if text.startswith("1111") else []

    balanced = Gate(
        detectors=[RuleDetector(), Phones()],
        draft_detectors=[RuleDetector()],
        max_chars=1000,
        timeout_ms=5000,
        policy=policy_of(PrivacyConfig(policy="balanced")),
    )
    texts = [("a", "It begins 4111 1111"), ("b", "Go on."), ("c", "1111 1111, thanks")]
    verdict = balanced.inspect(texts)
    assert (verdict.action, verdict.reason) == (
        "local",
        "found CREDIT_CARD over the border of two texts",
    )
    assert balanced.inspect(texts[1:]).action == "mask"


def test_ordinary_messages_are_not_joined_into_something_private() -> None:
    texts = ["The sum is 42", "17 + 5 = 22", "In 2026", "we met at 10:30", "", "  ", "x", "@you"]
    pairs = [(f"messages[{i}].content", t) for i, t in enumerate(texts)]
    assert gate(RuleDetector()).inspect(pairs).may_leave


def test_reports_see_everything_however_unsure() -> None:
    low = Fake(lambda t: [span(score=0.1), span(5, 9, score=0.9)])
    assert [(s.start, s.score) for s in gate(low).spans("0123456789")] == [(0, 0.1), (5, 0.9)]
    passage = Span(entity="PRIVATE_MATTER", start=0, end=9, score=1.0, recogniser="fake")
    both = gate(Fake(lambda t: [passage]), low).spans("0123456789")
    assert [s.entity for s in both] == ["PERSON", "PRIVATE_MATTER", "PERSON"]
    with pytest.raises(FloeError, match=r"detector fake failed \(ValueError\)") as error:
        gate(Fake(raises(ValueError(SECRET)))).spans(SECRET)
    assert SECRET not in str(error.value)
    assert error.value.__suppress_context__
