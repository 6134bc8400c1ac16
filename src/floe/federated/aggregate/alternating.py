"""RoLoRA: rounds train B and A in turn, each half-step with an exact mean."""

from __future__ import annotations

from floe.federated.aggregate.shared_half import Half, SharedHalf


def half_of(round_number: int) -> Half:
    """The half that a round trains: B first (A is random, B zero), then A, and so on.

    Rounds are counted from 1.
    """
    return "b" if round_number % 2 else "a"


class Alternating(SharedHalf):
    """The exact mean of the half that a round trains, in constant memory."""

    name = "alternating"

    def __init__(self, *, round_number: int) -> None:
        super().__init__(trained=half_of(round_number))
