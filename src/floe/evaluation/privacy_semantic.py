"""Figures of the semantic privacy score on items held out from its training."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

PRIVATE_ITEMS = ("privacylens_cases", "confaide_3", "confaide_4")
GENERAL_ITEMS = ("self_instruct", "mt_bench", "ifeval")
MIN_SCORE = 0.5


class Scored(Protocol):
    """What a span has that counts."""

    @property
    def score(self) -> float:
        """In [0, 1]."""
        ...


class Finds(Protocol):
    """A detector of the privacy gate."""

    def find(self, text: str) -> Sequence[Scored]:
        """Private places in a text."""
        ...


@dataclass(frozen=True, kw_only=True)
class Item:
    """A held-out text and whether it tells a private matter."""

    source: str
    private: bool
    text: str


def held_out_items() -> Iterator[Item]:
    """Every shipped item; README.md beside the file says where each source is from."""
    path = files("floe.evaluation").joinpath("privacy_semantic_data/held_out.jsonl.gz")
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        row = json.loads(line)
        yield Item(source=row["source"], private=bool(row["private"]), text=row["text"])


def semantic_figures(detector: Finds) -> dict[str, float]:
    """Shares of held-out items in which `detector` finds a private matter, in [0, 1].

    `semantic_recall`: PrivacyLens cases and ConfAIde stories and meetings together;
    `semantic_fpr`: general instructions (Self-Instruct, MT-bench, IFEval) together;
    `semantic_recall_zh` and `semantic_fpr_zh`: held-out Chinese templates; and by source
    `semantic_recall_<source>`, `semantic_fpr_<source>`, with their numbers `semantic_n_...`.
    """
    hits: dict[tuple[bool, str], list[bool]] = {}
    for item in held_out_items():
        found = any(span.score >= MIN_SCORE for span in detector.find(item.text))
        hits.setdefault((item.private, item.source), []).append(found)
    figures = {
        "semantic_recall": _share([h for s in PRIVATE_ITEMS for h in hits[True, s]]),
        "semantic_fpr": _share([h for s in GENERAL_ITEMS for h in hits[False, s]]),
        "semantic_recall_zh": _share(hits[True, "templates_zh"]),
        "semantic_fpr_zh": _share(hits[False, "templates_zh"]),
    }
    for (private, source), found_all in sorted(hits.items()):
        kind = "recall" if private else "fpr"
        figures[f"semantic_{kind}_{source}"] = _share(found_all)
        figures[f"semantic_n_{kind}_{source}"] = len(found_all)
    return figures


def _share(hits: Sequence[bool]) -> float:
    return round(sum(hits) / len(hits), 4)
