"""What things are called on disk and on the wire, and how many cores there are."""

from __future__ import annotations

import os

EMBEDDING = "wordllama-256"
NER = "rampart-ner"
LEDGER = "egress.jsonl"
CACHE = "cache"
FUSION = "fusion"
ROUTING = "routing"
TRUST = "trust"
STAND_IN = "qwen2.5-coder-0.5b-instruct"


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
