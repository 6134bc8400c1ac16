"""Do two forms of one model compute the same? Greedy tokens and the largest difference.

Legend: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadModel

Run = Callable[[Sequence[int]], NDArray[np.float32]]
"""Token ids -> natural-log probabilities (T, V) after each of them, from an empty cache."""

TOLERANCE = 1e-2
"""Largest difference between F32 forms (issue 7); on quantized ones it is measured, not asked."""


@dataclass(frozen=True, kw_only=True)
class LogitCheck:
    """What was found over all prompts.

    `max_error` is in natural-log probabilities. `greedy_same` of `greedy_tokens` tokens are equal
    when each form continues by itself; `is_ok` = all of them and the error within `tolerance`.
    """

    is_ok: bool
    max_error: float
    greedy_same: int
    greedy_tokens: int
    tolerance: float


def logit_check(
    reference: Run,
    other: Run,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int = 16,
    tolerance: float = TOLERANCE,
) -> LogitCheck:
    """Compare after every token of each prompt and of the reference's greedy continuation.

    The other form is fed the reference's tokens, and as long as its own choice is the same, that
    is its own continuation; after the first difference the rest of a prompt counts as different.

    Raises:
        BadModel: no prompt, or the forms give other shapes.
    """
    if not prompts:
        raise BadModel("the logit check needs at least one prompt")
    max_error, same = 0.0, 0
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(new_tokens):
            tokens.append(int(reference(tokens)[-1].argmax()))
        fed = tokens[:-1] if new_tokens else tokens
        want_TV, got_TV = reference(fed), other(fed)
        if want_TV.shape != got_TV.shape:
            raise BadModel(f"the forms give {want_TV.shape} and {got_TV.shape} values")
        error = float(np.abs(want_TV.astype(np.float64) - got_TV).max())
        max_error = max(max_error, error if np.isfinite(error) else np.inf)
        is_same = got_TV[len(prompt) - 1 :].argmax(-1) == np.asarray(tokens[len(prompt) :])
        same += int(np.logical_and.accumulate(is_same).sum())
    total = len(prompts) * new_tokens
    return LogitCheck(
        is_ok=same == total and max_error <= tolerance, max_error=max_error,
        greedy_same=same, greedy_tokens=total, tolerance=tolerance,
    )  # fmt: skip
