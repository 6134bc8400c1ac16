"""What the cloud still has to say when its token is longer than the one the SLM drew.

After the SLM's "-" for a cloud token "-by", a fresh question would show the cloud a lone "-",
which it never writes there itself. So the rest, "by", is carried over to the next place.
With one tokenizer nothing is ever carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from floe.core.advice import Advice, Candidate
from floe.fusion.align import Alignment


@dataclass(frozen=True, kw_only=True)
class Carry:
    """Shares of the cloud, given what was drawn; they sum to 1.

    `rests` have begun a token and know how it goes on; `fresh` ended one exactly here, so
    only a new question can tell.
    """

    rests: tuple[tuple[bytes, float], ...] = ()
    fresh: float = 1.0
    tokenizer: str = ""

    @property
    def needs_advice(self) -> bool:
        """Whether a question at this place can say anything new."""
        return self.fresh > 0.0

    def joined(self, advice: Advice | None, offset_bytes: int) -> Advice | None:
        """The distribution of the next bytes; None where nothing is known about it.

        p(next | drawn) = sum of the rests + fresh * p(next | new question). Without an answer to
        that question its share is `unasked`.
        """
        if not self.rests:
            return advice
        begun = [Candidate(data=data, log_prob=log(share)) for data, share in self.rests]
        asked = advice.candidates if advice is not None and self.needs_advice else ()
        shift = log(self.fresh) if asked else 0.0
        fresh = [
            Candidate(data=c.data, log_prob=min(c.log_prob, 0.0) + shift, end=c.end) for c in asked
        ]
        return Advice(
            offset_bytes=offset_bytes,
            candidates=(*begun, *fresh),
            tokenizer=self.tokenizer,
            unasked=0.0 if asked else self.fresh,
        )


NOTHING = Carry()


def carry_after(advice: Advice | None, token: int, data: bytes, alignment: Alignment) -> Carry:
    """What remains of `advice` once the SLM's `token` with bytes `data` was drawn.

    Only candidates that were counted for that token remain, in proportion to their masses.
    """
    if advice is None:
        return NOTHING
    rests: dict[bytes, float] = {}
    exact = 0.0
    for n in alignment.counts_for(advice, token):
        candidate = advice.candidates[n]
        mass = exp(min(candidate.log_prob, 0.0))
        if mass == 0.0:
            continue
        if len(candidate.data) <= len(data):
            exact += mass
        else:
            rest = candidate.data[len(data) :]
            rests[rest] = rests.get(rest, 0.0) + mass
    if not rests:
        return NOTHING
    total = exact + sum(rests.values())
    return Carry(
        rests=tuple((rest, mass / total) for rest, mass in rests.items()),
        fresh=exact / total,
        tokenizer=advice.tokenizer,
    )
