"""What fusion wins over reference answers, from recordings where there are any."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from floe.assemble import FUSION
from floe.core.config import home
from floe.fusion.quality import quality
from floe.fusion.weights import Weights

ENVIRONMENT = "FLOE_FUSION_RECORDINGS"
"""The folder that scripts/record_fusion.py has written; else `fusion/recordings` in FLOE_HOME."""


def recordings() -> Path:
    """The folder of the recordings, which may not be there."""
    return Path(os.environ.get(ENVIRONMENT) or home() / FUSION / "recordings").expanduser()


def quality_figures(learned: Weights | None, *, cloud_share: float) -> dict[str, Any]:
    """Flat figures; none without recordings or learned weights.

    The points of the curve are `quality_at_N` (gap recovered at a target share of N per cent) and
    `quality_share_at_N` (the share that came out).

    Raises:
        BadRequest: recordings of another pair than the weights.
    """
    folder = recordings()
    if learned is None or not (folder / "raw-held_out.npz").is_file():
        return {}
    found = quality(folder, learned, cloud_share=cloud_share, maps=home() / FUSION)
    curve = found.pop("quality_curve")
    for point in curve:
        percent = round(100 * point["target"])
        found[f"quality_at_{percent}"] = point["gap_recovered"]
        found[f"quality_share_at_{percent}"] = point["cloud_share"]
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in found.items()}
