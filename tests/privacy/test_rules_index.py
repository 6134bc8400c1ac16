"""The pass over hints leaves out no rule that would have found something."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.test_rules import ROWS as FIRST
from tests.privacy.test_rules_chinese import ROWS as CHINESE
from tests.privacy.test_rules_context import ROWS as CONTEXT
from tests.privacy.test_rules_world import ROWS as WORLD

from floe.privacy.base import Span
from floe.privacy.detector import RuleDetector, best
from floe.privacy.normalise import normalise
from floe.privacy.rules import ALL
from floe.privacy.rules.hints import Hints
from floe.privacy.rules.index import RuleIndex

INDEX = RuleIndex(ALL)
TEXTS = [row[1] for row in [*FIRST, *WORLD, *CONTEXT, *CHINESE]]
_BITS = st.sampled_from(TEXTS) | st.text(alphabet="0123456789 -.:/+()@aZ中K\n", max_size=20)


def _found(text: str, *, all_rules: bool) -> set[tuple[str, int, int]]:
    rules = ALL if all_rules else INDEX.candidates(Hints(text))
    return {(s.recogniser, s.start, s.end) for rule in rules for s in rule.find(text)}


def test_every_known_value_is_found_through_the_index() -> None:
    for text in TEXTS:
        copy = normalise(text).text
        assert _found(copy, all_rules=False) == _found(copy, all_rules=True), text


@settings(deadline=None, max_examples=150)
@given(st.lists(_BITS, max_size=4), st.sampled_from(["", " ", "：", "é"]))
def test_the_index_is_the_same_as_asking_every_rule(bits: list[str], between: str) -> None:
    text = normalise(between.join(bits)).text
    assert _found(text, all_rules=False) == _found(text, all_rules=True)


def test_upper_case_is_no_way_around_the_index() -> None:
    for text in TEXTS:
        copy = normalise(text.upper()).text
        assert _found(copy, all_rules=False) == _found(copy, all_rules=True), text


def test_plain_prose_wakes_few_rules() -> None:
    text = "The committee met again on Tuesday and talked about the garden, the roof and lunch."
    assert len(INDEX.candidates(Hints(text))) <= 2


def test_every_rule_is_exercised() -> None:
    """A rule that no row of the tables meets would be dead."""
    detector = RuleDetector()
    met = {span.recogniser for text in TEXTS for span in detector.find(text)}
    assert {rule.name for rule in ALL} - met == set()


def test_names_of_rules_are_their_own() -> None:
    names = [rule.name for rule in ALL]
    assert len(names) == len(set(names))


def test_spans_are_best_first() -> None:
    spans = [Span(entity="A", start=0, end=3, score=0.6, recogniser="r")]
    assert best(spans) == spans
