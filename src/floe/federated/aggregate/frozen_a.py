"""FFA-LoRA: every device keeps the first A and trains B. Exact; noise is not multiplied."""

from __future__ import annotations

from floe.federated.aggregate.shared_half import SharedHalf


class FrozenA(SharedHalf):
    """The exact mean of B under one A, in constant memory."""

    name = "frozen-a"

    def __init__(self) -> None:
        super().__init__(trained="b")
