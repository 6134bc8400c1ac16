"""Log-probabilities of drawn tokens in OpenAI's two formats; always finite numbers."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from floe.core.token import Draw

LEAST = -9999.0
"""What OpenAI sends for a probability of zero: JSON has no infinity (bug-log A52, A53)."""


class LogProbs(Protocol):
    """Format draws, in the order they were drawn; None when there are none."""

    def of(self, draws: Sequence[Draw]) -> dict[str, object] | None:
        """The `logprobs` object of a choice."""
        ...


def finite(log_prob: float) -> float:
    """The value itself, or LEAST for less (NaN stays, and the JSON encoder refuses it)."""
    return LEAST if log_prob < LEAST else float(log_prob)


def token_text(data: bytes) -> str:
    """A token as text; one that is part of a character is shown by its bytes, as OpenAI does."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class ChatLogProbs:
    """{"content": [{token, logprob, bytes, top_logprobs}]}, with `top` candidates each."""

    def __init__(self, *, top: int) -> None:
        self._top = top

    def of(self, draws: Sequence[Draw]) -> dict[str, object] | None:
        """The `logprobs` object of a chat choice."""
        return {"content": [self._entry(draw) for draw in draws], "refusal": None}

    def _entry(self, draw: Draw) -> dict[str, object]:
        best = [_entry(t.data, t.log_prob) for t in draw.top[: self._top]]
        return _entry(draw.data, draw.log_prob) | {"top_logprobs": best}


class CompletionLogProbs:
    """{tokens, token_logprobs, top_logprobs, text_offset} with offsets in code points."""

    def __init__(self, *, top: int) -> None:
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, draws: Sequence[Draw]) -> dict[str, object] | None:
        """The `logprobs` object of a completion choice."""
        if not draws:
            return None
        return {
            "tokens": [token_text(draw.data) for draw in draws],
            "token_logprobs": [finite(draw.log_prob) for draw in draws],
            "top_logprobs": [self._best(draw) for draw in draws] if self._top else None,
            "text_offset": [self._place(draw) for draw in draws],
        }

    def _best(self, draw: Draw) -> dict[str, float]:
        best = {token_text(t.data): finite(t.log_prob) for t in draw.top[: self._top]}
        return best | {token_text(draw.data): finite(draw.log_prob)}

    def _place(self, draw: Draw) -> int:
        place = self._offset
        self._offset += len(self._decoder.decode(draw.data))
        return place


def _entry(data: bytes, log_prob: float) -> dict[str, object]:
    return {"token": token_text(data), "logprob": finite(log_prob), "bytes": list(data)}
