"""The cloud's candidates on the SLM's vocabulary.

V = the SLM's real ids; C = candidates of one advice. A cloud token counts for the SLM token its
bytes begin with (the longest one), so with one tokenizer the map is the identity. With another
tokenizer it also counts for the longer SLM tokens that the cloud would begin with it: where the
cloud writes a line's end and the indent as two tokens, the SLM has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice
from floe.fusion.longer import Longer, LongerBlanks

Probs = NDArray[np.float64]
LogProbs = NDArray[np.float32]
_BELOW = 1.0 - 1e-9  # a tie between sent and unsent goes to the sent
_LEAST_SHARE = 1e-6
_LEAST_MASS = 1e-4  # below it a candidate counts for its own token only, which saves time
_CACHE_ENTRIES = 300_000  # above any real vocabulary; a cloud that invents more costs no memory


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """One advice on the SLM's ids: `masses_C` as sent on `ids_C`, and the whole `p_V`."""

    ids_C: NDArray[np.int64]
    masses_C: Probs
    p_V: Probs


class Alignment:
    """Map cloud bytes to SLM ids. `token_bytes` holds the bytes of ids 0..V-1, empty for control.

    `longer` gives, by the digest of another tokenizer, the SLM tokens that it begins with each of
    its own; where it gives None, only runs of blanks are known to be parted differently. Advice
    that names no tokenizer is of `tokenizer`, by default the SLM's own. Not thread-safe for
    writes, which only fill a cache: two threads at worst do a look-up twice.
    """

    def __init__(
        self,
        *,
        token_bytes: Sequence[bytes],
        eos_ids: frozenset[int],
        longer: Callable[[str], Longer | None] | None = None,
        tokenizer: str = "",
    ) -> None:
        self.n_vocab = len(token_bytes)
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(token_bytes):
            if piece and token not in eos_ids:
                self._ids.setdefault(piece, token)
        self._longest = max(map(len, self._ids), default=0)
        self._eos = np.array(sorted(eos_ids), dtype=np.int64)
        self._cache: dict[bytes, int] = {}
        self._longer, self._tokenizer = longer, tokenizer
        self._blanks = LongerBlanks(self._ids)

    def token_of(self, data: bytes) -> int | None:
        """The id of the longest SLM token that is a prefix of `data`, if any."""
        token = self._cache.get(data)
        if token is None:
            if len(self._cache) >= _CACHE_ENTRIES:
                self._cache.clear()
            token = self._cache[data] = self._look_up(data)
        return token if token >= 0 else None

    def cloud_probs(self, advice: Advice, log_probs_V: LogProbs) -> Probs | None:
        """The cloud's distribution p over the SLM's ids, shape (V,); None when nothing maps."""
        mapped = self.mapped(advice, log_probs_V)
        return None if mapped is None else mapped.p_V

    def mapped(self, advice: Advice, log_probs_V: LogProbs) -> Mapped | None:
        """The cloud's distribution with the ids that were sent; None when nothing maps.

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
        missing = max(0.0, 1.0 - advice.unasked - float(sent.sum()))
        p_V = self._rest(missing, float(sent.min()) * _BELOW, ids, log_probs_V)
        p_V[ids] = sent
        if advice.unasked > 0.0:
            p_V *= (1.0 - advice.unasked) / p_V.sum()
            p_V += advice.unasked * np.exp(log_probs_V, dtype=np.float64)
        p_V /= p_V.sum()
        return Mapped(ids_C=ids, masses_C=sent, p_V=p_V)

    def counts_for(self, advice: Advice, token: int) -> list[int]:
        """Which candidates (by place in the advice) count for the SLM's `token`, ends aside."""
        longer = self._longer_of(advice)
        return [
            n
            for n, c in enumerate(advice.candidates)
            if not c.end and (self.token_of(c.data) == token or token in longer.get(n, ()))
        ]

    def _longer_of(self, advice: Advice) -> dict[int, NDArray[np.int64]]:
        """By place in the advice: the SLM tokens that a candidate is only the beginning of."""
        tokenizer = advice.tokenizer or self._tokenizer
        if not tokenizer:
            return {}
        pieces = [c.data for c in advice.candidates]
        known = self._longer(tokenizer) if self._longer is not None else None
        if known is None:
            return self._blanks.of(pieces)
        return {n: known[data] for n, data in enumerate(pieces) if data in known}

    def _masses(self, advice: Advice, log_probs_V: LogProbs) -> dict[int, float]:
        masses: dict[int, float] = {}
        longer = self._longer_of(advice)
        for n, candidate in enumerate(advice.candidates):
            token = self._end(log_probs_V) if candidate.end else self.token_of(candidate.data)
            mass = exp(min(candidate.log_prob, 0.0))
            if mass == 0.0:
                continue
            if n in longer and mass > _LEAST_MASS:
                for other, share in self._shared(token, longer[n], log_probs_V):
                    masses[other] = masses.get(other, 0.0) + share * mass
            elif token is not None:
                masses[token] = masses.get(token, 0.0) + mass
        return masses

    def _shared(
        self, token: int | None, longer: NDArray[np.int64], log_probs_V: LogProbs
    ) -> Iterable[tuple[int, float]]:
        """A candidate's tokens with their shares, which are the SLM's own among them."""
        ids = longer if token is None else np.append(longer, token)
        logs = log_probs_V[ids].astype(np.float64)
        shares = np.exp(logs - logs.max())
        shares /= shares.sum()
        kept = shares > _LEAST_SHARE
        return zip(ids[kept].tolist(), shares[kept].tolist(), strict=True)

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
