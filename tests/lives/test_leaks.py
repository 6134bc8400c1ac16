"""No planted value in any byte that left, in logs, metrics, ledgers, errors or printed text.

The full form (5,000 prompts and more) is part of `floe bench privacy --full`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from floe.cli.leak import run_leak_test
from floe.core.sections import PrivacyConfig
from floe.core.verdict import Verdict
from floe.privacy.base import Span
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.policy import policy_of
from floe.testing.leak_cases import FIELDS, cases
from floe.testing.leak_watch import Watch

ALLOW = Verdict(action="allow", reason="mutation")


def test_nothing_that_was_planted_leaves() -> None:
    report = run_leak_test(200, seed=11)
    assert report.leaks == 0, (report.by_field, report.by_encoding, report.by_place)
    assert report.prompts == 200
    # it was tried: something left, masked and as it is, was kept, refused and given up
    assert report.sent_bytes > 50_000
    assert report.questions > 100
    assert min(report.actions[action] for action in ("local", "mask", "allow")) >= 5
    assert min(report.statuses[status] for status in ("200", "400", "left")) >= 3
    assert all(report.seen_bytes[place] for place in ("sent", "log", "metrics", "ledger", "error"))


def test_every_field_and_encoding_is_tried_in_the_full_form() -> None:
    tried = list(cases(5000, seed=0))
    assert {case.where for case in tried} == set(FIELDS)
    assert len({case.encoding for case in tried}) == 11
    assert len({case.planted for case in tried if case.planted}) > 4000
    assert tried == list(cases(5000, seed=0))


class Open:
    """A gate that lets everything through, or only answers."""

    def __init__(self, real: Gate | None = None) -> None:
        self._real = real

    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = "default") -> Verdict:
        return self._real.inspect(texts, tenant=tenant) if self._real else ALLOW

    def inspect_draft(self, text: str, *, tenant: str = "default") -> Verdict:
        return ALLOW


class Telling(Open):
    """A gate that tells texts to somebody: a log, or a terminal."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = "default") -> Verdict:
        for _, text in texts:
            self._tell(text)
        return Verdict(action="local", reason="mutation")


def real_gate(*more: object, timeout_ms: int = 2000) -> Gate:
    return Gate(
        detectors=[*more, RuleDetector()],  # type: ignore[list-item]
        draft_detectors=[RuleDetector()],
        max_chars=20_000,
        timeout_ms=timeout_ms,
        policy=policy_of(PrivacyConfig(policy="balanced")),
    )


@pytest.mark.parametrize(
    ("gate", "places"),
    [
        (Open(), {"sent"}),
        (Open(real_gate()), {"sent"}),
        (Telling(lambda text: logging.getLogger("floe.x").debug("seen %r", text)), {"log"}),
        (Telling(lambda text: print(text, file=sys.stderr)), {"stderr"}),
        (Telling(print), {"stdout"}),
    ],
    ids=["no gate", "no guard", "log", "stderr", "stdout"],
)
def test_the_test_can_fail(gate: Open, places: set[str]) -> None:
    report = run_leak_test(
        36, seed=3, gate=gate, policies=["strict"], kinds=["floe"], fault_share=0.0
    )
    assert report.leaks > 0
    assert set(report.by_place) == places


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 11",
        "num 4111-1111-1 x",
        "４１１１１１１１１",
        "4\u200b1\u200b1\u200b1\u200b1111",
        "YQ NDExMSAxMTExIDExMTE=",
        "%34%31%31%31%20%31%31%31%31",
        "&#52;&#49;&#49;&#49; 1111",
        "\\u0034\\u0031\\u0031\\u0031 1111",
        "{'a': '٤١١١١١١١'}",
    ],
)
def test_pieces_are_seen_in_every_encoding(text: str) -> None:
    watch = Watch(public="")
    watch.plant(7, "4111 1111 1111 1111")
    watch.see("sent", text)
    assert {(leak.number, leak.where) for leak in watch.leaks} == {(7, "sent")}


def test_no_leak_is_seen_where_there_is_none() -> None:
    watch = Watch(public="Dear friend, ")
    watch.plant(1, "4111 1111 1111 1111")
    watch.plant(2, "Dear friend, x")
    watch.plant(3, "王小明")
    watch.see("sent", b"Dear friend, 4111 and 111 1; \xe7\x8e\x8b")
    watch.see("log", "2026-11-29 12:00:00.41111111 chatcmpl-41111111111111114111111111111111")
    assert watch.leaks == set()
    watch.see_json("sent", {"answer": "5bCP", "draft": "5piO"})
    watch.see_json("sent", {"answer": "546L5bCP", "draft": "5piO"})
    assert {leak.number for leak in watch.leaks} == {3}


# --- B22: every way a detector can fail, end to end


class Failing:
    name = "failing"

    def __init__(self, act: Callable[[str], Sequence[Span]]) -> None:
        self._act = act

    def find(self, text: str) -> Sequence[Span]:
        return self._act(text)


def raising(make: Callable[[str], Exception]) -> Callable[[str], Sequence[Span]]:
    def act(text: str) -> Sequence[Span]:
        raise make(text)

    return act


def hanging(_text: str) -> Sequence[Span]:
    threading.Event().wait(1.0)
    return []


def nonsense(text: str) -> Sequence[Span]:
    return [Span(entity=text, start=-3, end=-1, score=1.0, recogniser=text)]


FAILURES: dict[str, Callable[[str], Sequence[Span]]] = {
    "timeout": hanging,
    "5xx": raising(lambda text: OSError(f"status 503 for {text}")),
    "bad json": raising(lambda text: json.JSONDecodeError(text, text, 0)),
    "exception": raising(ValueError),
    "nonsense": nonsense,
    "no list": lambda text: None,  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("failure", FAILURES)
def test_b22_a_detector_that_fails_lets_nothing_out(failure: str) -> None:
    gate = real_gate(Failing(FAILURES[failure]), timeout_ms=30 if failure == "timeout" else 5000)
    report = run_leak_test(
        12, seed=5, gate=gate, policies=["balanced"], kinds=["floe"], fault_share=0.0
    )
    assert (report.leaks, report.questions, report.sent_bytes) == (0, 0, 0)
    assert set(report.actions) <= {"local", ""}
    assert report.actions["local"] >= 5
