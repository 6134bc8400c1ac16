"""Goals and bars of `floe bench privacy`."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal

GOALS = (
    Goal(field="private_recall_en", about="private sentences found, English", value=0.985),
    Goal(field="private_precision_en", about="of those said private, English", value=0.93),
    Goal(
        field="span_entities_below_presidio", value=0, at_most=True,
        about="entities in which Presidio finds more places",
    ),
    Goal(field="private_recall_zh", about="private sentences found, Chinese", value=0.97),
    Goal(field="private_precision_zh", about="of those said private, Chinese", value=0.93),
    Goal(field="semantic_recall", about="private matters without a form, found", value=0.927),
    Goal(
        field="semantic_fpr", value=0.10, at_most=True,
        about="general instructions held for private matters",
    ),
    Goal(
        field="negatives_fpr", value=0.02, at_most=True,
        about="logs, code, lock files, JSON, news held for private",
    ),
    Goal(field="p50_ms_rules", about="rules, ms a sentence", value=0.5, at_most=True),
    Goal(field="ratio_presidio", about="Presidio's time over the gate's", value=1.0),
    Goal(field="leaks", about="leaks in the leak test", value=0, at_most=True),
    Goal(
        field="stream_holdback_share", value=1.0, at_most=True,
        about="most characters held back, over the longest placeholder",
    ),
)  # fmt: skip
_SHOWN = ("PERSON", "STREET_ADDRESS", "GPE", "PHONE_NUMBER", "ZIP_CODE")
CHARTS = (
    *(
        Chart(
            title=f"Places found: {entity}",
            unit="share",
            bars=(
                ("Floe", f"span_recall_en_{entity}"),
                ("Presidio", f"presidio_span_recall_en_{entity}"),
            ),
        )
        for entity in _SHOWN
    ),
    Chart(
        title="Time a sentence",
        unit="ms",
        bars=(
            ("rules", "p50_ms_rules"),
            ("the gate", "p50_ms_all"),
            ("Presidio", "p50_ms_presidio"),
        ),
    ),
)
