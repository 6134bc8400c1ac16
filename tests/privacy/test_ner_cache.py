"""The cache of findings beside a list that does the same slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from floe.privacy.base import Span
from floe.privacy.ner import NerDetector, NerFiles
from floe.privacy.ner_cache import Remembered


def spans(n: int) -> tuple[Span, ...]:
    return (Span(entity="PERSON", start=0, end=1, score=n / 100, recogniser="r"),)


@given(st.lists(st.tuples(st.booleans(), st.text(alphabet="ab", max_size=6)), max_size=40))
def test_it_keeps_what_was_used_last(steps: list[tuple[bool, str]]) -> None:
    cache = Remembered(max_entries=3, max_chars=8)
    slow: list[tuple[str, tuple[Span, ...]]] = []
    for n, (is_put, text) in enumerate(steps):
        known = [pair for pair in slow if pair[0] == text]
        if is_put:
            cache.put(text, spans(n))
            slow = [pair for pair in slow if pair[0] != text] + [(text, spans(n))]
            while len(slow) > 3 or sum(len(t) for t, _ in slow) > 8:
                slow.pop(0)
        else:
            assert cache.get(text) == (known[0][1] if known else None)
            slow = [pair for pair in slow if pair[0] != text] + known


def test_a_text_over_the_bound_is_not_kept() -> None:
    cache = Remembered(max_entries=3, max_chars=8)
    cache.put("short", spans(1))
    cache.put("far too long", spans(2))
    assert cache.get("far too long") is None
    assert cache.get("short") == spans(1)


def test_a_text_is_read_once(rampart_files: NerFiles) -> None:
    detector = NerDetector(files=rampart_files)
    first = detector.find("Ask John Miller.")
    detector._session = None  # a second reading would fail
    again = detector.find("Ask John Miller.")
    assert again == first
    assert again is not first
