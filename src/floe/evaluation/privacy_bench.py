"""`floe bench privacy`: what the gate finds and lets through, beside Presidio's analyzer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from floe.assemble import EMBEDDING, NER, open_gate
from floe.core.config import Config, home
from floe.core.errors import FloeError, Missing
from floe.core.sections import PrivacyConfig
from floe.evaluation.machine import versions
from floe.evaluation.privacy_detection import (
    counts,
    flagged_share,
    found_by,
    is_flagged,
    rates,
    span_recalls,
)
from floe.evaluation.privacy_negatives import negatives
from floe.evaluation.privacy_presidio_set import is_private, sentences, tuned_frames
from floe.evaluation.privacy_semantic import semantic_figures
from floe.evaluation.privacy_sets import Example
from floe.evaluation.privacy_speed import Timed, prompts, time_sides
from floe.evaluation.privacy_streams import holdback
from floe.evaluation.privacy_zh import Split, examples, frames
from floe.evaluation.processes import environment
from floe.models.pull import ensure
from floe.privacy.base import Detector, Span
from floe.privacy.detector import RuleDetector
from floe.privacy.ner import NerDetector, NerFiles
from floe.privacy.presidio import PresidioDetector
from floe.privacy.semantic import SemanticDetector
from floe.routing.embed import StaticEmbedding

Say = Callable[[str], None]
Figures = dict[str, Any]
SEED = 13
_PEER_PRIVATE_NOT = frozenset({"DATE_TIME", "NRP", "ORGANIZATION", "URL"})
_LEAK_TEST = """
import dataclasses, json, sys
from floe.cli.leak import run_leak_test
report = run_leak_test(int(sys.argv[1]), int(sys.argv[2]))
print(json.dumps({"prompts": report.prompts, "leaks": report.leaks}))
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured; `sentences` of the 1,500, drawn by the seed."""

    sentences: int
    zh_rounds: int
    negatives: int
    prompts: int
    leak_prompts: int


QUICK = Plan(sentences=300, zh_rounds=2, negatives=180, prompts=16, leak_prompts=200)
FULL = Plan(sentences=1500, zh_rounds=20, negatives=1800, prompts=100, leak_prompts=5000)
FIELDS = (
    "private_recall_en", "private_precision_en", "private_recall_zh", "private_precision_zh",
    "semantic_recall", "semantic_fpr", "negatives_fpr", "p50_ms_rules", "p50_ms_all",
    "ratio_presidio", "leaks", "prompts", "stream_holdback_chars",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """Who is measured: the gate's own detectors, and the peer if it is installed.

    `own` look for values and names; the semantic score looks for matters that have no form, which
    the labelled sets do not label, so it is measured apart.
    """

    own: tuple[Detector, ...]
    semantic: SemanticDetector
    peer: PresidioDetector | None
    note: str | None


def privacy_benchmark(full: bool, say: Say) -> Figures:
    """Issue 4's figures; a field that was not measured is None."""
    plan = FULL if full else QUICK
    sides = _sides()
    if sides.note:
        say(sides.note)
    say(f"{plan.sentences} English sentences")
    figures = _english(plan, sides)
    say("Chinese sentences, texts without anything private, streams")
    figures |= _chinese(plan, sides.own)
    figures |= _negatives(plan, sides)
    figures |= _streams(plan)
    say("speed on prompts")
    figures |= _prompts(plan, sides)
    say("semantic score")
    figures |= semantic_figures(sides.semantic)
    say(f"leak test, {plan.leak_prompts} prompts")
    figures |= leak_test(plan.leak_prompts, SEED)
    return {
        **dict.fromkeys(FIELDS),
        "seed": SEED,
        "threads": 1,
        "detectors": ", ".join(d.name for d in sides.own),
        "peer": "presidio-analyzer with en_core_web_sm" if sides.peer else None,
        "note": sides.note,
        **figures,
        **versions(llama_build=None),
    }


def _sides() -> _Sides:
    pulled = ensure(NER, home=home()).files
    files = NerFiles(model=pulled["model"], tokenizer=pulled["tokenizer"], config=pulled["config"])
    own = (RuleDetector(), NerDetector(files=files))
    semantic = _semantic()
    try:
        return _Sides(own=own, semantic=semantic, peer=PresidioDetector(), note=None)
    except Missing as error:
        note = f"Presidio is not measured: {error}"
        return _Sides(own=own, semantic=semantic, peer=None, note=note)


def _semantic() -> SemanticDetector:
    """With the embedding as it is: the router's is seen against a background."""
    pulled = ensure(EMBEDDING, home=home())
    encoder = StaticEmbedding(
        weights=pulled.files["weights"], tokenizer=pulled.files["tokenizer"], digest=pulled.digest
    )
    return SemanticDetector(encoder=encoder)


def _english(plan: Plan, sides: _Sides) -> Figures:
    """Rates and span recalls on the Presidio research set, and the time per sentence."""
    chosen = _drawn(plan.sentences)
    timed = time_sides(list(dict.fromkeys(e.text for e in chosen)), _timed_sides(sides))
    found = [found_by(sides.own, e.text) for e in chosen]
    verdicts = [(is_private(e), counts(s)) for e, s in zip(chosen, found, strict=True)]
    tuned = [e.frame in tuned_frames() for e in chosen]
    parts = {
        "": verdicts,
        "_tuned": [v for v, t in zip(verdicts, tuned, strict=True) if t],
        "_held_out": [v for v, t in zip(verdicts, tuned, strict=True) if not t],
    }
    out: Figures = {"sentences_en": len(chosen)}
    for end, part in parts.items():
        measured = rates(part)
        out[f"private_recall_en{end}"] = measured.recall
        out[f"private_precision_en{end}"] = measured.precision
    recalls = span_recalls(chosen, found)
    out |= {f"span_recall_en_{entity}": recall for entity, recall in recalls.items()}
    out |= _speed_figures(timed, [counts(sides.own[0].find(t)) for t in _texts(chosen)])
    return out | _peer_english(chosen, recalls, sides.peer)


def _drawn(n: int) -> Sequence[Example]:
    every = sentences()
    return every if n >= len(every) else random.Random(SEED).sample(every, n)


def _texts(chosen: Sequence[Example]) -> list[str]:
    return list(dict.fromkeys(e.text for e in chosen))


def _timed_sides(sides: _Sides) -> dict[str, Callable[[str], object]]:
    gate = open_gate(Config(privacy=PrivacyConfig(ner="on", timeout_ms=60_000)), home=home())
    timed: dict[str, Callable[[str], object]] = {
        "rules": sides.own[0].find,
        "all": lambda text: gate.inspect([("prompt", text)]),
    }
    if sides.peer is not None:
        timed["presidio"] = sides.peer.everything
    return timed


def _speed_figures(timed: Timed, decided: Sequence[bool]) -> Figures:
    """Medians; "undecided" sentences are those that the rules alone do not stop."""
    rest = timed.where([not d for d in decided])
    return {
        "p50_ms_rules": timed.median("rules"),
        "p50_ms_all": timed.median("all"),
        "p50_ms_presidio": timed.median("presidio"),
        "ratio_presidio": timed.ratio("presidio", "all"),
        "p50_ms_all_undecided": rest.median("all"),
        "ratio_presidio_undecided": rest.ratio("presidio", "all"),
        "decided_by_rules": sum(decided) / len(decided) if decided else None,
    }


def _peer_english(
    chosen: Sequence[Example], own: dict[str, float | None], peer: PresidioDetector | None
) -> Figures:
    if peer is None:
        return {"presidio_private_recall_en": None, "presidio_private_precision_en": None}
    found = [peer.everything(e.text) for e in chosen]
    verdicts = [(is_private(e), _peer_says(s)) for e, s in zip(chosen, found, strict=True)]
    measured = rates(verdicts)
    recalls = span_recalls(chosen, found)
    below = [e for e in recalls if (own[e] or 0) < (recalls[e] or 0)]
    return {
        "presidio_private_recall_en": measured.recall,
        "presidio_private_precision_en": measured.precision,
        **{f"presidio_span_recall_en_{entity}": recall for entity, recall in recalls.items()},
        "span_entities_compared": len(recalls),
        "span_entities_below_presidio": len(below),
        "span_entities_below_presidio_names": ", ".join(below),
    }


def _peer_says(spans: Sequence[Span]) -> bool:
    return any(span.entity not in _PEER_PRIVATE_NOT for span in spans)


def _chinese(plan: Plan, own: Sequence[Detector]) -> Figures:
    """Rates on frames that nothing was tuned on, and on those for tuning beside them."""
    out: Figures = {}
    sides: tuple[tuple[Split, str], ...] = (("test", ""), ("train", "_tuned"))
    for split, end in sides:
        n = plan.zh_rounds * len(frames(split)) if split == "test" else len(frames(split))
        chosen = examples(split, n=n, seed=SEED)
        found = [_until_decided(own, e.text) for e in chosen]
        verdicts = [(e.is_private, counts(s)) for e, s in zip(chosen, found, strict=True)]
        measured = rates(verdicts)
        out[f"private_recall_zh{end}"] = measured.recall
        out[f"private_precision_zh{end}"] = measured.precision
        if split == "test":
            out["sentences_zh"] = len(chosen)
            out["frames_zh"] = len(frames("test"))
            by_rules = [own[0].find(e.text) for e in chosen]
            recalls = span_recalls(chosen, by_rules)
            out |= {f"span_recall_zh_{entity}": recall for entity, recall in recalls.items()}
    return out


def _until_decided(own: Sequence[Detector], text: str) -> list[Span]:
    found: list[Span] = []
    for detector in own:
        found += detector.find(text)
        if counts(found):
            break
    return found


def _negatives(plan: Plan, sides: _Sides) -> Figures:
    texts = negatives("test", n=plan.negatives, seed=SEED)
    shares = flagged_share(texts, lambda text: is_flagged(sides.own, text))
    out: Figures = {"negatives": len(texts), "negatives_fpr": shares.pop("")}
    held = flagged_share(texts, lambda text: is_flagged([sides.semantic], text))
    out["negatives_fpr_semantic"] = held[""]
    return out | {f"negatives_fpr_{kind}": share for kind, share in shares.items()}


def _streams(plan: Plan) -> Figures:
    held, longest, changed = holdback(examples("test", n=20 * plan.zh_rounds, seed=SEED))
    return {
        "stream_holdback_chars": held,
        "longest_placeholder_chars": longest,
        "stream_holdback_share": held / longest if longest else None,
        "streams_changed": changed,
    }


def _prompts(plan: Plan, sides: _Sides) -> Figures:
    """Medians for 512 characters: of sentences of the set, and of news without anything private."""
    mixed = prompts([e.text for e in sentences()], n=plan.prompts, seed=SEED)
    news = [text for kind, text in negatives("test", n=600, seed=SEED) if kind == "news"]
    out: Figures = {"prompt_chars": len(mixed[0])}
    for end, texts in (("_512", mixed), ("_512_clean", prompts(news, n=plan.prompts, seed=SEED))):
        timed = time_sides(texts, _timed_sides(sides))
        out[f"p50_ms_rules{end}"] = timed.median("rules")
        out[f"p50_ms_all{end}"] = timed.median("all")
        out[f"p50_ms_presidio{end}"] = timed.median("presidio")
        out[f"ratio_presidio{end}"] = timed.ratio("presidio", "all")
    return out


def leak_test(n_prompts: int, seed: int) -> Figures:
    """The leak test in a process of its own: it serves, taps and logs.

    Raises:
        FloeError: it did not end well.
    """
    run = subprocess.run(
        [sys.executable, "-c", _LEAK_TEST, str(n_prompts), str(seed)],
        capture_output=True,
        text=True,
        env=environment(bare=False),
        check=False,
    )
    if run.returncode:
        raise FloeError(f"the leak test ended with status {run.returncode}: {run.stderr[-400:]}")
    figures: Figures = json.loads(run.stdout.strip().splitlines()[-1])
    return figures
