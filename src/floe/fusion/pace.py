"""How far to draft ahead and how much to ask at once, from what was measured so far."""

from __future__ import annotations

import math

_SMOOTHING = 0.2
_MOST_PLACES = 16
_FIRST_PLACES = 4


class Pace:
    """Running means of the SLM's step, the cloud's answer and the share of kept drafts.

    `budget_ms` is what a token waits for the cloud: questions shrink to what is answered in it.
    """

    def __init__(self, *, budget_ms: float) -> None:
        self._budget_ms = budget_ms
        self.step_ms = self.answer_ms = 0.0
        self._first_answer_ms: float | None = None
        self.kept_share = 0.8
        self.question_places = _FIRST_PLACES

    def stepped(self, step_ms: float) -> None:
        """A step of the SLM took this long."""
        self.step_ms = _mean(self.step_ms, step_ms)

    def answered(self, answer_ms: float) -> None:
        """A question took this long from sending to answer; the first one reads the prompt."""
        if self._first_answer_ms is None:
            self._first_answer_ms = answer_ms
            return
        self.answer_ms = _mean(self.answer_ms, answer_ms)
        if answer_ms > self._budget_ms:
            self.question_places = max(1, self.question_places // 2)
        elif answer_ms < self._budget_ms / 2:
            self.question_places = min(_MOST_PLACES, self.question_places + 1)

    @property
    def usual_answer_ms(self) -> float:
        """What an answer takes, as far as is known; 0 before the first."""
        return self.answer_ms or self._first_answer_ms or 0.0

    def released(self, *, kept: bool) -> None:
        """A draft was kept, or corrected."""
        self.kept_share += _SMOOTHING / 4 * (float(kept) - self.kept_share)

    def block_tokens(self) -> int:
        """Places to gather before asking while a question is out.

        The smaller, the sooner a draft is known to be wrong; the larger, the fewer questions
        carry the answer so far again. Blocks of a quarter of a round trip are where it bends.
        """
        return max(1, min(self.question_places, round(self._steps_per_answer() / 4)))

    def lookahead_tokens(self, most: int) -> int:
        """Drafts that may wait for their score: what one answer takes, and two blocks more.

        Not more than twice the expected run of kept drafts, since the rest is thrown away.
        """
        run = 2 / max(1 - self.kept_share, 0.02)
        ahead = math.ceil(self._steps_per_answer() + 2 * self.block_tokens())
        return max(2, min(most, ahead, int(run)))

    def _steps_per_answer(self) -> float:
        return self.answer_ms / self.step_ms if self.step_ms > 0 and self.answer_ms > 0 else 4.0


def _mean(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
