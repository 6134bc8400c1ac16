"""What surrounds people (dates, ages, peoples, firms): found, and by default it keeps nothing."""

from __future__ import annotations

import pytest

from floe.core.sections import PrivacyConfig
from floe.privacy.build import build_gate
from floe.privacy.detector import RuleDetector

DETECTOR = RuleDetector()
ROWS = [
    ("DATE_TIME", "founded in 1977, on 2/8/1935 and Tuesday", ["1977", "2/8/1935", "Tuesday"]),
    (
        "DATE_TIME",
        "2000-04-16 11:34:35 or 2024年5月3日",
        ["2000-04-16 11:34:35", "2024年5月3日"],
    ),
    ("DATE_TIME", "March 3rd, 2021 at 10:30 pm", ["March 3rd, 2021", "10:30 pm"]),
    ("DATE_TIME", "version 10.2.1977.4, order 20240503123, a 2000x2000 grid", []),
    ("AGE", "This 79 year old female, aged 61, and 63岁", ["79", "61", "63"]),
    ("AGE", "I'm 31 y/o and just turned 60", ["31", "60"]),
    ("AGE", "I'm 100% sure, an old 5.5 inch disk, 63 items", []),
    ("NRP", "a Norwegian and two Buddhists, 藏族", ["Norwegian", "Buddhists", "藏族"]),
    ("NRP", "polishing, germane, thaiboxing", []),
    ("ORGANIZATION", "Aunt Bertha Inc", ["Aunt Bertha Inc"]),
    ("ORGANIZATION", "White, Willis and Hoffman", ["White, Willis and Hoffman"]),
    ("ORGANIZATION", "I work for Avalara, they said", ["Avalara"]),
    ("ORGANIZATION", "，上海某某有限公司", ["上海某某有限公司"]),
    ("ORGANIZATION", "the office, a bank, and in company of friends", []),
    ("TITLE", "Please see Dr. Ngo", ["Dr."]),
    ("TITLE", "ms 30, dr 5, Miss", []),
    ("URL", "see https://www.Example.se/a?b=1 now", ["https://www.Example.se/a?b=1"]),
    ("URL", "or www.example.org then", ["www.example.org"]),
    ("URL", "a/b, http:, wwwx.example.org", []),
]


@pytest.mark.parametrize(("entity", "text", "values"), ROWS)
def test_it_is_found_below_the_score_that_counts(entity: str, text: str, values: list[str]) -> None:
    spans = [s for s in DETECTOR.find(text) if s.entity == entity]
    assert [text[s.start : s.end] for s in spans] == values
    assert all(s.score < 0.5 for s in spans)


@pytest.mark.parametrize(("entity", "text", "values"), [row for row in ROWS if row[2]])
def test_a_policy_may_make_it_count(entity: str, text: str, values: list[str]) -> None:
    quiet = build_gate(PrivacyConfig(ner="off", semantic="off"), None)
    assert quiet.inspect([("prompt", text)]).may_leave
    strict = PrivacyConfig(ner="off", semantic="off", scores={entity: 0.3})
    assert build_gate(strict, None).inspect([("prompt", text)]).action == "local"
    masking = PrivacyConfig(
        ner="off", semantic="off", scores={entity: 0.3}, entities={entity: "mask"}
    )
    verdict = build_gate(masking, None).inspect([("prompt", text)])
    # Two digits stand in too many other places to be replaced wherever they stand.
    assert verdict.action == ("local" if entity == "AGE" else "mask")
    assert [text[f.start : f.end] for f in verdict.findings] == values
