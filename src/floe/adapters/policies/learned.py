"""The learned policy (being built)."""

from __future__ import annotations

from floe.adapters.policies.lfu import Gdsf


class Learned(Gdsf):
    """Placeholder until the learner lands."""

    name = "learned"

    def __init__(self, *, seed: int = 7) -> None:
        super().__init__()
