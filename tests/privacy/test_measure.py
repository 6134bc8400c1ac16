"""Labelled files in the forms users have, and the figures that come out of them."""

from __future__ import annotations

import json

import pytest

from floe.core.errors import BadRequest
from floe.core.sections import PrivacyConfig
from floe.privacy.base import Span
from floe.privacy.labelled import Gold, Labelled, read_labelled
from floe.privacy.measure import MISSED, Measure, Measured
from floe.privacy.policy import STRICT, Policy, policy_of

TEXT = "Ada King, ada@example.org"
OURS = {
    "text": TEXT,
    "spans": [
        {"entity": "PERSON", "start": 0, "end": 8},
        {"entity": "EMAIL_ADDRESS", "start": 10, "end": 25},
    ],
}
PRESIDIO = {
    "full_text": TEXT,
    "masked": "{{name}}, {{email}}",
    "spans": [
        {
            "entity_type": "PERSON",
            "entity_value": "Ada King",
            "start_position": 0,
            "end_position": 8,
        },
        {"entity_type": "EMAIL_ADDRESS", "start_position": 10, "end_position": 25},
    ],
}
GOLD = (Gold(entity="PERSON", start=0, end=8), Gold(entity="EMAIL_ADDRESS", start=10, end=25))


@pytest.mark.parametrize("item", [OURS, PRESIDIO])
@pytest.mark.parametrize("form", ["lines", "list", "indented list"])
def test_objects_with_spans_are_read(item: dict[str, object], form: str) -> None:
    texts = {
        "lines": f"\n{json.dumps(item)}\n\n{json.dumps(item)}",
        "list": json.dumps([item, item]),
        "indented list": json.dumps([item, item], indent=1),
    }
    found = list(read_labelled(texts[form].split("\n")))
    assert [(f.text, f.private, f.spans) for f in found] == [(TEXT, True, GOLD)] * 2
    assert [f.line for f in found] == ([2, 4] if form == "lines" else [1, 2])


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ('{"text": "x", "private": true}', True),
        ('{"text": "x", "private": false}', False),
        ("x\t1", True),
        ("x\t0", False),
        ("x\tPERSON,GPE", True),
        ("x\t-", False),
        ("x\t", False),
        ("x\tyes\r", True),
    ],
)
def test_texts_with_a_yes_or_no_are_read(line: str, private: bool) -> None:
    assert list(read_labelled([line])) == [Labelled(line=1, text="x", private=private, spans=None)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no label here", "line 2 has no label: write a JSON object"),
        ('{"text": ', "line 2 is not valid JSON"),
        ('{"txt": "a"}', 'line 2 has no "text"'),
        ('{"text": 1}', 'line 2 has no "text"'),
        ('{"text": "secret"}', 'line 2 needs "spans", or "private" with true or false'),
        ('{"text": "secret", "private": 1}', 'line 2 needs "spans", or "private"'),
        ('{"text": "secret", "spans": 1}', 'line 2: "spans" must be a list'),
        ('{"text": "secret", "spans": [1]}', "line 2: a span must be an object"),
        ('{"text": "secret", "spans": [{"start": 0}]}', 'line 2: a span needs "entity"'),
        (
            '{"text": "secret", "spans": [{"entity": "A", "start": 0, "end": 99}]}',
            "line 2: a span lies outside of its text",
        ),
    ],
)
def test_what_is_no_label_is_an_error_with_its_line(line: str, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        list(read_labelled(["x\t1", line]))
    assert error.value.message.startswith(message)
    assert "secret" not in error.value.message


def test_a_list_that_is_none_and_its_items_are_errors() -> None:
    with pytest.raises(BadRequest, match=r"begins with \[ but is no JSON list at line 2"):
        list(read_labelled(["[", "x"]))
    with pytest.raises(BadRequest, match="item 2 is not a JSON object"):
        list(read_labelled([json.dumps([OURS, 3])]))


def span(entity: str, start: int, end: int, score: float = 0.9) -> Span:
    return Span(entity=entity, start=start, end=end, score=score, recogniser="t")


def measured(*rows: tuple[Labelled, list[Span]], policy: Policy = STRICT) -> Measured:
    measure = Measure(policy=policy)
    for labelled, spans in rows:
        measure.add(labelled, spans)
    return measure.result()


def text(line: int = 1, spans: tuple[Gold, ...] | None = GOLD, private: bool = True) -> Labelled:
    return Labelled(line=line, text=TEXT, private=private, spans=spans)


def test_recall_and_precision_by_entity_and_by_text() -> None:
    found = measured(
        (text(1), [span("PERSON", 0, 8), span("EMAIL_ADDRESS", 10, 25)]),
        (text(2), [span("PERSON", 4, 8), span("URL", 14, 25)]),
        (text(3), []),
        (text(4, spans=(), private=False), [span("PERSON", 0, 3)]),
        (text(5, spans=None), [span("GPE", 0, 3)]),
        (text(6, spans=None), []),
        (text(7, spans=None, private=False), []),
    )
    assert (found.texts, found.private) == (7, 5)
    assert found.private_recall == pytest.approx(3 / 5)
    assert found.private_precision == pytest.approx(3 / 4)
    person, mail = found.entities["PERSON"], found.entities["EMAIL_ADDRESS"]
    assert (person.gold, person.found, person.covered, person.reported, person.right) == (
        *(3, 2, 1),
        *(3, 2),
    )
    assert (person.recall, person.precision) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (mail.gold, mail.found, mail.covered, mail.reported) == (3, 2, 1, 1)
    assert (found.entities["URL"].recall, found.entities["URL"].precision) == (None, 1.0)
    assert found.confusion == {
        ("PERSON", "PERSON"): 2,
        ("PERSON", MISSED): 1,
        ("EMAIL_ADDRESS", "EMAIL_ADDRESS"): 1,
        ("EMAIL_ADDRESS", "URL"): 1,
        ("EMAIL_ADDRESS", MISSED): 1,
    }
    # line 6 is public to the gate as a whole; of line 3 nothing was found; of 2 "Ada" and "ada"
    assert found.worst == [(6, len(TEXT)), (3, 20), (2, 6)]


def test_scores_are_suggested_that_lose_nothing_or_find_more() -> None:
    low = measured((text(), [span("PERSON", 0, 8, 0.3), span("EMAIL_ADDRESS", 10, 25)]))
    assert low.suggested == {"PERSON": 0.3}
    noisy = measured(
        (text(), [span("PERSON", 0, 8, 0.8), span("EMAIL_ADDRESS", 10, 25)]),
        (text(2, spans=(), private=False), [span("PERSON", 0, 3, 0.6)]),
    )
    assert noisy.suggested == {"PERSON": 0.8}
    better = policy_of(PrivacyConfig(scores=noisy.suggested))
    again = measured(
        (text(), [span("PERSON", 0, 8, 0.8), span("EMAIL_ADDRESS", 10, 25)]),
        (text(2, spans=(), private=False), [span("PERSON", 0, 3, 0.6)]),
        policy=better,
    )
    assert (again.private_recall, again.private_precision, again.suggested) == (1.0, 1.0, {})


def test_what_the_policy_allows_makes_no_text_private() -> None:
    allowed = policy_of(PrivacyConfig(entities={"GPE": "allow"}))
    found = measured((text(1, spans=None), [span("GPE", 0, 3)]), policy=allowed)
    assert (found.private_recall, found.worst) == (0.0, [(1, len(TEXT))])


def test_a_passage_tells_that_a_text_is_private_but_finds_no_value_in_it() -> None:
    found = measured(
        (text(1), [span("PRIVATE_MATTER", 0, 25)]),
        (text(2, spans=(), private=False), [span("PRIVATE_MATTER", 0, 25)]),
    )
    assert (found.private_recall, found.private_precision) == (1.0, 0.5)
    assert (found.entities["PERSON"].recall, found.confusion["PERSON", MISSED]) == (0.0, 1)
    assert found.entities["PRIVATE_MATTER"].precision == 0.5
