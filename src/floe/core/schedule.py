"""How a learning rate goes over a training: for all parts that train."""

from __future__ import annotations

import math


def schedule(step: int, *, steps: int, warmup_steps: int) -> float:
    """Share of the full rate at a step from 0: linear warm-up, then a cosine down to a tenth."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
