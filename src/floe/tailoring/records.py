"""Trials of a search on disk, one JSON line each, synced before the next one starts.

A search that was killed is resumed from them; a line that was cut off by the kill is dropped. One
process writes a file at a time (a lock on it says so).
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from floe.core.errors import BadPlan, Busy
from floe.tailoring.base import Cost, Trial
from floe.tailoring.plan import LayerPlan, Plan

FORMAT = 1
Label = Mapping[str, str | int | float | None]
"""What trials belong to: search, seed, model, budgets. A file is resumed only under the same."""


class Records:
    """The file of one search, open for appending."""

    def __init__(self, path: Path, *, label: Label) -> None:
        """Open or make the file; what it holds already is in `trials`.

        Raises:
            BadPlan: it is of another search, or not such a file. Busy: another process has it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: BinaryIO = path.open("a+b")
        try:
            self._lock()
            self.trials = self._read(dict(label))
        except BaseException:
            self._file.close()
            raise

    def append(self, trial: Trial) -> None:
        """Write one trial; it is on the disk when this returns."""
        self._write(trial_to_json(trial))

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(
                f"another search writes {self._path}; wait for it, or give each search and seed "
                "a file of its own"
            ) from error

    def _read(self, label: dict[str, Any]) -> list[Trial]:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # cut off by a kill
            self._file.truncate(len(whole))
        lines = whole.splitlines()
        if not lines:
            self._write({"format": FORMAT, "label": label})
            return []
        try:
            head, *rest = [json.loads(line) for line in lines]
            found, was = head["label"], head["format"]
            trials = [trial_from_json(r) for r in rest]
        except (ValueError, KeyError, TypeError) as error:
            raise BadPlan(f"{self._path} holds no trials of a search; give another file") from error
        if was != FORMAT or found != label:
            different = sorted(k for k in {*found, *label} if found.get(k) != label.get(k))
            raise BadPlan(
                f"{self._path} is of another search ({', '.join(different) or 'format'} differ); "
                "give another file, or remove it to start anew"
            )
        return trials

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """A trial as JSON values; an infinite perplexity becomes None."""
    plan = asdict(trial.plan)
    plan["layers"] = [[p.n_kv_heads, p.q_per_kv, p.n_ffn] for p in trial.plan.layers]
    return {
        "perplexity": trial.perplexity if math.isfinite(trial.perplexity) else None,
        "score": trial.score,
        "cost": asdict(trial.cost),
        "plan": plan,
    }


def trial_from_json(record: Mapping[str, Any]) -> Trial:
    """The trial of `trial_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is not one.
    """
    plan = dict(record["plan"])
    layers = tuple(LayerPlan(n_kv_heads=k, q_per_kv=q, n_ffn=f) for k, q, f in plan.pop("layers"))
    found = record["perplexity"]
    return Trial(
        plan=Plan(layers=layers, **plan),
        perplexity=math.inf if found is None else float(found),
        cost=Cost(**record["cost"]),
        score=float(record["score"]),
    )
