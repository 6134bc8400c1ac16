"""From the SLM's distribution and the cloud's advice to a drawn token. V = the SLM's real ids."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice
from floe.core.request import Request
from floe.core.token import Draw, Origin
from floe.fusion.align import Alignment
from floe.fusion.mix import mix
from floe.fusion.sample import Sampler, best
from floe.fusion.weigh import QUIET, Network, Seen, Standing, Weigh, fixed

FloatArray = NDArray[np.float32]
_LEAST_PROBABILITY = 1e-9  # one token the cloud never says must not outweigh an answer


class Drawing:
    """Draws the tokens of one request; the same place and inputs give the same token.

    `weight` is the SLM's share, a number or what decides it place by place.
    """

    def __init__(
        self,
        request: Request,
        *,
        weight: float | Weigh,
        alignment: Alignment,
        token_bytes: Callable[[int], bytes],
        standing: Standing | None = None,
    ) -> None:
        self._sampler, self._n_top = Sampler(request.sampling), request.top_log_probs
        self._weigh = weight if callable(weight) else fixed(weight)
        self._alignment, self.token_bytes = alignment, token_bytes
        self._standing = standing or Standing()

    def propose(self, log_q_V: FloatArray, place: int) -> int:
        """The SLM's own token at the answer's token number `place`."""
        return self._sampler.propose(log_q_V, place)

    def draw(
        self, log_q_V: FloatArray, advice: Advice | None, place: int, network: Network = QUIET
    ) -> Draw:
        """The token at `place`: from the mix where there is advice, else the SLM's own.

        `network` is for streams that need not be drawn again the same: it depends on time.
        """
        mapped = self._alignment.mapped(advice, log_q_V) if advice is not None else None
        log_f_V: NDArray[np.floating] = log_q_V
        if advice is not None and mapped is not None:
            seen = Seen(
                log_q_V=log_q_V,
                advice=advice,
                mapped=mapped,
                standing=self._standing,
                network=network,
            )
            log_f_V = mix(log_q_V, mapped.p_V, self._weigh(seen))
        choice = self._sampler.draw(log_q_V, log_f_V, place)
        origin: Origin = "edge"
        if mapped is not None:
            origin = "fused" if choice.id == choice.edge_id else "cloud"
        return Draw(
            id=choice.id,
            data=self.token_bytes(choice.id),
            log_prob=float(log_f_V[choice.id]),
            origin=origin,
            top=best(log_f_V, self._n_top, self.token_bytes),
            cloud_log_prob=_log(mapped.p_V[choice.edge_id]) if mapped is not None else None,
        )


def _log(probability: float) -> float:
    """Its logarithm, bounded below."""
    return math.log(max(probability, _LEAST_PROBABILITY))
