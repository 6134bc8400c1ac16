"""From the SLM's distribution and the cloud's advice to a drawn token. V = the SLM's real ids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import Advice
from floe.core.request import Request
from floe.core.token import Draw, Origin
from floe.fusion.align import Alignment
from floe.fusion.mix import mix
from floe.fusion.sample import Sampler, best

FloatArray = NDArray[np.float32]


class Drawing:
    """Draws the tokens of one request; the same place and inputs give the same token."""

    def __init__(
        self,
        request: Request,
        *,
        weight: float,
        alignment: Alignment,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._sampler, self._n_top = Sampler(request.sampling), request.top_log_probs
        self._weight, self._alignment, self.token_bytes = weight, alignment, token_bytes

    def propose(self, log_q_V: FloatArray, place: int) -> int:
        """The SLM's own token at the answer's token number `place`."""
        return self._sampler.propose(log_q_V, place)

    def draw(self, log_q_V: FloatArray, advice: Advice | None, place: int) -> Draw:
        """The token at `place`: from the mix where there is advice, else the SLM's own."""
        p_V = self._alignment.cloud_probs(advice, log_q_V) if advice is not None else None
        log_f_V = log_q_V if p_V is None else mix(log_q_V, p_V, self._weight)
        choice = self._sampler.draw(log_q_V, log_f_V, place)
        origin: Origin = "edge"
        if p_V is not None:
            origin = "fused" if choice.id == choice.edge_id else "cloud"
        return Draw(
            id=choice.id,
            data=self.token_bytes(choice.id),
            log_prob=float(log_f_V[choice.id]),
            origin=origin,
            top=best(log_f_V, self._n_top, self.token_bytes),
        )
