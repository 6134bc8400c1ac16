"""Learned fusion weights on disk: JSON with the pair of models they are for, and the report.

{"version", "pair": {"slm", "slm_tokenizer", "cloud_tokenizer"}, "fixed_weight",
 "net": {...}, "gate": {"net", "quantiles"}, "report": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floe.core.errors import BadConfig
from floe.core.files import atomic_write
from floe.fusion.features import NAMES
from floe.fusion.fit import Fitted
from floe.fusion.gate import SureGate
from floe.fusion.longer import SHIPPED
from floe.fusion.net import Net
from floe.fusion.predictor import Predictor
from floe.fusion.weigh import fixed

VERSION = 1
_AGAIN = "learn new ones with: floe fusion fit TEXTFILE"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Whose weights these are: digest of the SLM, digests of both tokenizers."""

    slm: str
    slm_tokenizer: str
    cloud_tokenizer: str


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a fuser needs, and where it comes from."""

    predictor: Predictor
    gate: SureGate
    pair: Pair
    report: Mapping[str, Any]


def save_weights(fitted: Fitted, path: Path, *, pair: Pair, facts: Mapping[str, Any]) -> None:
    """Write weights with their report; `facts` about the data join the report."""
    data = {
        "version": VERSION,
        "pair": asdict(pair),
        "fixed_weight": fitted.fixed_weight,
        "net": fitted.net.as_json(),
        "gate": {
            "net": fitted.gate.as_json(),
            "quantiles": [round(q, 6) for q in fitted.quantiles],
        },
        "report": {**facts, **fitted.report},
    }
    with atomic_write(path) as file:
        file.write(json.dumps(data, indent=1).encode())


def load_weights(
    path: Path,
    *,
    slm: str,
    slm_tokenizer: str,
    cloud_share: float = 1.0,
    other_weight: float | None = None,
) -> Weights:
    """Weights for this SLM. For a cloud with another tokenizer than theirs `other_weight` holds
    (default: the best fixed weight of the training text).

    Raises:
        BadConfig: not such a file, another version, or learned for another SLM (bug-log B35).
    """
    data = _read(path)
    try:
        pair = Pair(**data["pair"])
        other = float(data["fixed_weight"] if other_weight is None else other_weight)
        report = data["report"]
        gate = data["gate"]
        net = data["net"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfig(f"{path} lacks a part of fusion weights; {_AGAIN}") from error
    if (pair.slm, pair.slm_tokenizer) != (slm, slm_tokenizer):
        raise BadConfig(
            f"the fusion weights in {path} were learned for another SLM ({pair.slm[:12]}, not "
            f"{slm[:12]}); {_AGAIN}"
        )
    return Weights(
        predictor=Predictor(
            net=Net.from_json(net, names=NAMES),
            cloud_tokenizer=pair.cloud_tokenizer,
            own_tokenizer=pair.slm_tokenizer,
            otherwise=fixed(other),
        ),
        gate=SureGate.from_json(gate, cloud_share=cloud_share),
        pair=pair,
        report=report,
    )


def find_weights(folder: Path, slm: str) -> Path | None:
    """The user's own weights for this SLM, else the shipped ones for it, else None."""
    name = weights_name(slm)
    return next((p for p in (folder / name, SHIPPED / name) if p.is_file()), None)


def weights_name(slm: str) -> str:
    """The file name for an SLM's digest."""
    return f"weights-{slm[:16]}.json"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadConfig(f"cannot read fusion weights from {path}; {_AGAIN}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise BadConfig(f"{path} is no file of fusion weights of version {VERSION}; {_AGAIN}")
    return data
