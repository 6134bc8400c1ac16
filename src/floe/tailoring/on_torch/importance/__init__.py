"""Pruning criteria behind one protocol (`base.Importance`), all from one pass of statistics.

```python
statistics = collect(model, ids, shape=shape_of(model, base_digest=digest))
scores = make_importance("flap", statistics=statistics).measure()
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from floe.core.errors import BadPlan
from floe.tailoring.base import Importance
from floe.tailoring.on_torch.importance.block_influence import BlockInfluence
from floe.tailoring.on_torch.importance.flap import Flap
from floe.tailoring.on_torch.importance.magnitude import Magnitude
from floe.tailoring.on_torch.importance.random_scores import RandomScores
from floe.tailoring.on_torch.importance.taylor import Taylor
from floe.tailoring.on_torch.importance.wanda import WandaSp
from floe.tailoring.statistics import Statistics

CRITERIA: Mapping[str, Callable[[Statistics, int], Importance]] = {
    Taylor.name: lambda statistics, _: Taylor(statistics),
    WandaSp.name: lambda statistics, _: WandaSp(statistics),
    Flap.name: lambda statistics, _: Flap(statistics),
    Magnitude.name: lambda statistics, _: Magnitude(statistics),
    RandomScores.name: RandomScores,
    BlockInfluence.name: lambda statistics, _: BlockInfluence(statistics),
}


def make_importance(name: str, *, statistics: Statistics, seed: int = 0) -> Importance:
    """The criterion of that name; `seed` is for "random".

    Raises:
        BadPlan: no such criterion.
    """
    check_importance(name)
    return CRITERIA[name](statistics, seed)


def check_importance(name: str) -> None:
    """Raise BadPlan where no criterion has that name."""
    if name not in CRITERIA:
        raise BadPlan(f"no importance is called {name!r}; there are {', '.join(CRITERIA)}")
