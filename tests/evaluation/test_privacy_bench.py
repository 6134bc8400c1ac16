"""The privacy benchmark: its sets, its arithmetic, its fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import FloeError, Missing
from floe.evaluation import privacy_bench
from floe.evaluation.bench import BENCHMARKS
from floe.evaluation.privacy_bench import FIELDS, Plan, leak_test, privacy_benchmark
from floe.evaluation.privacy_detection import (
    Rates,
    counts,
    flagged_share,
    is_flagged,
    rates,
    span_recalls,
)
from floe.evaluation.privacy_negatives import negatives
from floe.evaluation.privacy_page import CHARTS, GOALS
from floe.evaluation.privacy_presidio_set import PRIVATE, is_private, sentences, tuned_frames
from floe.evaluation.privacy_sets import Example, Place
from floe.evaluation.privacy_speed import prompts, time_sides
from floe.evaluation.privacy_streams import holdback
from floe.evaluation.privacy_zh import Split, examples, frames
from floe.evaluation.privacy_zh_values import PRIVATE as ZH_PRIVATE
from floe.evaluation.privacy_zh_values import PUBLIC, TEST, TRAIN
from floe.privacy.base import Span
from floe.privacy.rules import hk_id, tw_id
from floe.privacy.rules.cn_ids import is_credit_code
from floe.privacy.rules.cn_resident_id import is_valid
from floe.privacy.rules.credit_card import luhn

DATA = Path(privacy_bench.__file__).parent / "data"
SPLITS: tuple[Split, ...] = ("train", "test")


def span(start: int, end: int, score: float = 0.9) -> Span:
    return Span(entity="PERSON", start=start, end=end, score=score, recogniser="r")


def test_frames_for_tuning_and_measuring_share_nothing() -> None:
    train, test = frames("train"), frames("test")
    assert len(set(train)) == len(train) >= 120
    assert len(set(test)) == len(test) >= 120
    assert not set(train) & set(test)
    assert not set(TRAIN.given) & set(TEST.given)
    for field in ("cities", "roads", "estates", "companies", "historic", "latin"):
        assert not set(getattr(TRAIN, field)) & set(getattr(TEST, field))


@pytest.mark.parametrize("split", SPLITS)
def test_frames_are_marked_as_they_are(split: Split) -> None:
    lines = (DATA / f"privacy_zh_{split}.txt").read_text(encoding="utf-8").splitlines()
    marks = [line[0] for line in lines if line[:2] in ("+ ", "- ")]
    made = sorted(examples(split, n=len(marks), seed=3), key=lambda e: e.frame)
    assert [e.is_private for e in made] == [mark == "+" for mark in marks]
    assert 60 <= marks.count("+") <= 0.55 * len(marks)


@given(st.sampled_from(SPLITS), st.integers(0, 400), st.integers(0, 2**32))
def test_places_hold_what_was_filled_in(split: Split, n: int, seed: int) -> None:
    made = examples(split, n=n, seed=seed)
    assert len(made) == n
    used = [sum(e.frame == i for e in made) for i in range(len(frames(split)))]
    assert max(used) - min(used) <= 1
    for example in made:
        assert "{name" not in example.text
        ends = [0, *[p.end for p in example.places]]
        for place, last in zip(example.places, ends, strict=False):
            assert last <= place.start < place.end <= len(example.text)
            value = example.text[place.start : place.end]
            if place.entity == "CN_RESIDENT_ID":
                assert is_valid(value)
            if place.entity == "PERSON":
                assert 2 <= len(value) <= 4


@pytest.mark.parametrize("split", SPLITS)
def test_a_seed_gives_the_same_examples(split: Split) -> None:
    assert examples(split, n=50, seed=1) == examples(split, n=50, seed=1)
    assert examples(split, n=50, seed=1) != examples(split, n=50, seed=2)
    assert negatives(split, n=50, seed=1) == negatives(split, n=50, seed=1)
    assert negatives(split, n=50, seed=1) != negatives(split, n=50, seed=2)


def test_slots_have_one_meaning() -> None:
    assert not set(ZH_PRIVATE) & set(PUBLIC)


@pytest.mark.parametrize(
    ("entity", "is_right"),
    [
        ("CREDIT_CARD", lambda value: luhn(value.replace(" ", ""))),
        ("CN_CREDIT_CODE", is_credit_code),
        ("HK_ID", hk_id.is_valid),
        ("TW_ID", tw_id.is_valid),
        ("CN_RESIDENT_ID", is_valid),
    ],
)
def test_numbers_have_right_check_digits(entity: str, is_right: Callable[[str], bool]) -> None:
    values = [
        e.text[p.start : p.end]
        for e in examples("test", n=600, seed=8)
        for p in e.places
        if p.entity == entity
    ]
    assert values
    assert [v for v in values if not is_right(v)] == []


def test_the_presidio_set_is_whole() -> None:
    every = sentences()
    assert len(every) == 1500
    assert sum(is_private(e) for e in every) == 1102
    places = [(e, p) for e in every for p in e.places]
    assert all(0 <= p.start < p.end <= len(e.text) for e, p in places)
    assert sum(p.entity == "PERSON" for _, p in places) == 857
    assert {p.entity for _, p in places} >= PRIVATE
    halves = tuned_frames()
    assert len(halves) == 104
    assert (DATA / "privacy_presidio.json.xz").stat().st_size <= 300_000
    assert "MIT License" in (DATA / "privacy_presidio.LICENSE").read_text()


def test_negatives_are_of_six_kinds_and_filled() -> None:
    texts = negatives("test", n=120, seed=4)
    kinds = {kind for kind, _ in texts}
    assert kinds == {"log", "lock", "json", "news", "code", "source"}
    assert len(texts) == 120
    filled = [text for kind, text in texts if kind != "source"]  # source has braces of its own
    assert not any("{hex" in text or "{version" in text for text in filled)
    assert max(sum(k == kind for k, _ in texts) for kind in kinds) == 20


def test_rates_count_sentences() -> None:
    verdicts = [(True, True), (True, False), (False, True), (False, False), (True, True)]
    assert rates(verdicts) == Rates(recall=2 / 3, precision=2 / 3)
    assert rates([(False, False)]) == Rates(recall=None, precision=None)


def test_span_recall_counts_places_that_are_touched() -> None:
    example = Example(
        text="Ann Miller in Rome",
        places=(
            Place(entity="PERSON", start=0, end=10),
            Place(entity="GPE", start=14, end=18),
        ),
        frame=0,
    )
    assert span_recalls([example, example], [[span(9, 12, 0.1)], []]) == {
        "GPE": 0.0,
        "PERSON": 0.5,
    }


def test_a_text_is_flagged_by_what_counts() -> None:
    class Never:
        name = "never"

        def find(self, text: str) -> list[Span]:
            raise AssertionError("the one before had decided")

    class Says:
        name = "says"

        def find(self, text: str) -> list[Span]:
            return [span(0, 1, float(text))]

    assert is_flagged([Says(), Never()], "0.5")
    assert not is_flagged([Says()], "0.4")
    assert not counts([])
    shares = flagged_share([("a", "0.9"), ("a", "0.1"), ("b", "0.9")], lambda t: t == "0.9")
    assert shares == {"": 2 / 3, "a": 0.5, "b": 1.0}


def test_sides_are_timed_in_turn_on_the_same_texts() -> None:
    order: list[str] = []
    sides = {name: (lambda text, name=name: order.append(name + text)) for name in "xy"}
    timed = time_sides(["1", "2"], sides)  # type: ignore[arg-type] # the lambdas' default
    assert order[2:] == ["x1", "y1", "y2", "x2"]
    assert [len(ms) for ms in timed.ms.values()] == [2, 2]
    assert [len(ms) for ms in timed.where([True, False]).ms.values()] == [1, 1]
    assert timed.ratio("x", "none") is None
    assert timed.median("x") == sum(timed.ms["x"]) / 2


def test_prompts_have_512_characters() -> None:
    made = prompts(["One sentence.", "Another one."], n=3, seed=1)
    assert [len(p) for p in made] == [512] * 3
    assert made == prompts(["One sentence.", "Another one."], n=3, seed=1)


def test_a_restored_stream_waits_for_less_than_a_placeholder() -> None:
    held, longest, changed = holdback(examples("train", n=60, seed=2))
    assert 0 < held < longest
    assert changed == 0


@pytest.fixture(scope="module")
def figures(pulled: Any) -> dict[str, Any]:
    """A run on a handful of texts, without a peer and without the leak test."""
    pulled("rampart-ner")
    pulled("wordllama-256")

    def missing() -> None:
        raise Missing("not here. Install it with: pip install 'floe[presidio]'")

    plan = Plan(sentences=30, zh_rounds=1, negatives=12, prompts=1, leak_prompts=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privacy_bench, "QUICK", plan)
        patch.setattr(privacy_bench, "PresidioDetector", missing)
        patch.setattr(privacy_bench, "leak_test", lambda n, seed: {"prompts": n, "leaks": 0})
        return privacy_benchmark(False, lambda _: None)


def test_every_field_of_the_issue_is_there(figures: dict[str, Any]) -> None:
    assert set(FIELDS) <= set(figures)
    assert {goal.field for goal in GOALS} - {"span_entities_below_presidio"} <= set(figures)
    assert figures["prompts"] == 3
    assert all(isinstance(v, int | float | str | None) for v in figures.values())
    assert json.loads(json.dumps(figures)) == figures
    assert BENCHMARKS["privacy"].run is privacy_benchmark
    floe_fields = {key for chart in CHARTS for label, key in chart.bars if label != "Presidio"}
    assert floe_fields - set(figures) <= {"span_recall_en_ZIP_CODE"}  # not in 30 sentences


def test_without_the_peer_its_fields_are_none_and_a_note_says_why(
    figures: dict[str, Any],
) -> None:
    assert figures["ratio_presidio"] is None
    assert figures["presidio_private_recall_en"] is None
    assert "pip install 'floe[presidio]'" in figures["note"]
    assert figures["private_recall_en"] >= 0.9
    assert figures["private_recall_zh"] >= 0.9


def test_a_leak_test_that_breaks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_bench, "_LEAK_TEST", "raise SystemExit('no server')")
    with pytest.raises(FloeError, match=r"ended with status 1: no server"):
        leak_test(1, 1)
