"""Reports as totals and as a page."""

from __future__ import annotations

from floe.federated.report import ClusterLine, Refusal, RoundReport, by_reason, totals
from floe.federated.report_page import page

GOOD = RoundReport(
    round_number=1,
    selected=("a", "b", "<c>"),
    returned=("a", "b", "<c>"),
    accepted=("a", "b"),
    refused=(Refusal(client="<c>", reason="nan"),),
    clusters=(
        ClusterLine(cluster="c0", clients=("a", "b"), changed=True, rank=8, adapter="f" * 64),
    ),
    clipped_share=0.5,
    epsilon=1.25,
    epsilon_of="delta 1e-05",
    bytes_up=2_000_000,
    bytes_down=500_000,
).to_json()
VOID = RoundReport(
    round_number=2,
    void="too few",
    selected=("a",),
    returned=(),
    accepted=(),
    failed=(Refusal(client="a", reason="deadline"),),
).to_json()


def test_totals_count_what_counted() -> None:
    found = totals([GOOD, VOID])
    assert (found["rounds"], found["void"], found["accepted"], found["refused"]) == (1, 1, 2, 1)
    assert (found["epsilon"], found["clusters"], found["bytes_up"]) == (1.25, 1, 2_000_000)
    assert totals([])["epsilon"] is None


def test_reasons_are_counted() -> None:
    refusals = [
        Refusal(client=c, reason=r) for c, r in (("a", "nan"), ("b", "late"), ("c", "late"))
    ]
    assert list(by_reason(refusals).items()) == [("late", 2), ("nan", 1)]


def test_the_page_shows_all_and_trusts_no_name() -> None:
    text = page("my <fed>", [GOOD, VOID])
    assert "&lt;c&gt;: nan" in text
    assert "<c>" not in text
    assert "my &lt;fed&gt;" in text
    for part in ("2 void: too few", "50 %", "1.25 (delta 1e-05)", "a: deadline", "2.00"):
        assert part in text
    assert page("none", []).count("<tr>") == 2


def test_the_page_says_that_nothing_was_looked_at() -> None:
    said = "sums alone were seen, no single update"
    assert said in page("fed", [GOOD | {"secure_sum": True}])
    assert said not in page("fed", [GOOD, VOID])
