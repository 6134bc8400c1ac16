"""The cloud's candidates on the SLM's vocabulary.

V = the SLM's real ids; C = candidates of one advice. A cloud token counts for the SLM token its
bytes begin with (the longest one), so with one tokenizer the map is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice

Probs = NDArray[np.float64]
LogProbs = NDArray[np.float32]
_BELOW = 1.0 - 1e-9  # a tie between sent and unsent goes to the sent
_CACHE_ENTRIES = 300_000  # above any real vocabulary; a cloud that invents more costs no memory


class Alignment:
    """Map cloud bytes to SLM ids. `token_bytes` holds the bytes of ids 0..V-1, empty for control.

    Not thread-safe for writes, which only fill a cache: two threads at worst do a look-up twice.
    """

    def __init__(self, *, token_bytes: Sequence[bytes], eos_ids: frozenset[int]) -> None:
        self.n_vocab = len(token_bytes)
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(token_bytes):
            if piece and token not in eos_ids:
                self._ids.setdefault(piece, token)
        self._longest = max(map(len, self._ids), default=0)
        self._eos = np.array(sorted(eos_ids), dtype=np.int64)
        self._cache: dict[bytes, int] = {}

    def token_of(self, data: bytes) -> int | None:
        """The id of the longest SLM token that is a prefix of `data`, if any."""
        token = self._cache.get(data)
        if token is None:
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.clear()
            token = self._cache[data] = self._look_up(data)
        return token if token >= 0 else None

    def cloud_probs(self, advice: Advice, log_probs_V: LogProbs) -> Probs | None:
        """The cloud's distribution p over the SLM's ids, shape (V,); None when nothing maps.

        Masses of candidates that fall on one id are summed. An end goes to the end token that
        the SLM (`log_probs_V`) finds likeliest. The mass m that was not sent (or maps nowhere) is
        handed to the SLM's distribution q over the ids that no candidate reached, yet none of
        these gets as much as the least candidate, since the cloud sent its most probable tokens;
        what that cap leaves over is spread by normalising. So the likeliest sent id stays the
        likeliest. The result is within total variation m of the cloud's full distribution
        mapped the same way, and a mix with weight w within (1 - w) m.
        """
        masses = self._masses(advice, log_probs_V)
        if not masses:
            return None
        ids = np.fromiter(masses, dtype=np.int64, count=len(masses))
        sent = np.fromiter(masses.values(), dtype=np.float64, count=len(masses))
        missing = max(0.0, 1.0 - float(sent.sum()))
        p_V = self._rest(missing, float(sent.min()) * _BELOW, ids, log_probs_V)
        p_V[ids] = sent
        p_V /= p_V.sum()
        return p_V

    def _masses(self, advice: Advice, log_probs_V: LogProbs) -> dict[int, float]:
        masses: dict[int, float] = {}
        for candidate in advice.candidates:
            token = self._end(log_probs_V) if candidate.end else self.token_of(candidate.data)
            mass = exp(min(candidate.log_prob, 0.0))
            if token is not None and mass > 0.0:
                masses[token] = masses.get(token, 0.0) + mass
        return masses

    def _rest(self, missing: float, cap: float, ids: NDArray[np.int64], q_V: LogProbs) -> Probs:
        """`missing` in the proportions of q outside `ids`, all below `cap`."""
        if missing <= 1e-6:
            return np.zeros(self.n_vocab)
        rest_V = np.exp(q_V, dtype=np.float64)
        rest_V[ids] = 0.0
        total = float(rest_V.sum())
        if total <= 0.0:
            return np.zeros(self.n_vocab)
        rest_V *= missing / total
        return np.minimum(rest_V, cap, out=rest_V)

    def _end(self, log_probs_V: LogProbs) -> int | None:
        if not len(self._eos):
            return None
        return int(self._eos[int(np.argmax(log_probs_V[self._eos]))])

    def _look_up(self, data: bytes) -> int:
        for length in range(min(self._longest, len(data)), 0, -1):
            token = self._ids.get(data[:length])
            if token is not None:
                return token
        return -1
