"""Is a carried adapter the same function? Held against the full model with the adapter, masked."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from floe.core.errors import BadAdapter
from floe.tailoring.carry import Modules
from floe.tailoring.on_torch.blocks import Model
from floe.tailoring.on_torch.prune import Compensation, mask_model, prune_in_memory
from floe.tailoring.on_torch.reload import log_probs_of
from floe.tailoring.plan import Cut

TOLERANCE = 5e-2
"""Of the same sums in another order, in float32; the adapters' verification allows as much."""


def merged(model: Model, modules: Modules) -> Model:
    """A copy of the model with B A added to each module's weight."""
    changed = copy.deepcopy(model)
    layers = dict(changed.named_modules())
    for name, (a_RI, b_OR) in modules.items():
        if name not in layers:
            raise BadAdapter(f"the model has no module {name}")
        layers[name].weight.data += torch.from_numpy(np.ascontiguousarray(b_OR @ a_RI))
    return changed


def carry_error(
    model: Model,
    cut: Cut,
    modules: Modules,
    carried: Modules,
    texts: Sequence[Sequence[int]],
    *,
    compensation: Compensation | None = None,
) -> float:
    """The largest difference in log-probabilities between the cut model with `carried` and the
    full one with `modules`, masked. Both without recovery, which belongs to neither.
    """
    small = merged(prune_in_memory(model, cut, compensation=compensation), carried)
    masked = mask_model(merged(model, modules), cut, compensation=compensation)
    pairs = zip(log_probs_of(small, texts), log_probs_of(masked, texts), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
