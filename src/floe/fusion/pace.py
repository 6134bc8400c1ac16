"""How far to draft ahead and how much to ask at once, from what was measured so far."""

from __future__ import annotations

import math

_SMOOTHING = 0.2


class Pace:
    """Running means of the SLM's step, the cloud's answer and the share of kept drafts."""

    def __init__(self) -> None:
        self.step_ms = self.answer_ms = 0.0
        self.kept_share = 0.8

    def stepped(self, step_ms: float) -> None:
        """A step of the SLM took this long."""
        self.step_ms = _mean(self.step_ms, step_ms)

    def answered(self, answer_ms: float) -> None:
        """A question took this long from sending to answer."""
        self.answer_ms = _mean(self.answer_ms, answer_ms)

    def released(self, *, kept: bool) -> None:
        """A draft was kept, or corrected."""
        self.kept_share += _SMOOTHING / 4 * (float(kept) - self.kept_share)

    def block_tokens(self) -> int:
        """Places to gather before asking while a question is out.

        Two questions under way keep the cloud's answers coming half a round trip apart.
        """
        return max(1, min(16, round(self._steps_per_answer() / 2)))

    def lookahead_tokens(self, most: int) -> int:
        """Drafts that may wait for their score: what one answer takes, and a block more.

        Not more than twice the expected run of kept drafts, since the rest is thrown away.
        """
        run = 2 / max(1 - self.kept_share, 0.02)
        return max(
            2, min(most, math.ceil(self._steps_per_answer() + self.block_tokens()), int(run))
        )

    def _steps_per_answer(self) -> float:
        return self.answer_ms / self.step_ms if self.step_ms > 0 else 4.0


def _mean(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
