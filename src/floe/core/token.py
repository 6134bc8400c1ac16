"""What a stream is made of: a start, tokens, an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floe.core.route import Route
from floe.core.verdict import Verdict

Origin = Literal["edge", "fused", "cloud"]
FinishReason = Literal["stop", "length"]
Ended = Literal["", "deadline"]
CachedAs = Literal["", "exact", "semantic"]


@dataclass(frozen=True, kw_only=True)
class TopToken:
    """A candidate at one position."""

    id: int
    data: bytes
    log_prob: float


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A drawn token before text assembly.

    `origin`: edge = the SLM alone; fused = both, and the SLM alone would have drawn the same;
    cloud = both, and the cloud changed the draw. `log_prob` is under the distribution drawn from.
    `cloud_log_prob` is what the cloud gives to the token that the SLM alone would have drawn;
    None where it was not asked or had no say.
    """

    id: int
    data: bytes
    log_prob: float
    origin: Origin
    top: tuple[TopToken, ...] = ()
    cloud_log_prob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Token:
    """A drawn token and the text that became final with it (append-only, maybe empty)."""

    draw: Draw
    text: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """First event of a stream; `cached` = the answer to an equal or a like request is given."""

    verdict: Verdict
    route: Route
    prompt_tokens: int
    cloud: str
    cached: CachedAs = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Last event of a stream; `text` is what was still held back.

    `ended` names what cut the answer short, if it was not the answer or `max_tokens`.
    `cloud_asked` counts the questions put to the cloud, answered or not; 0 = nothing left.
    """

    reason: FinishReason
    text: str
    completion_tokens: int
    fused_tokens: int
    cloud_tokens: int
    cached_tokens: int
    ended: Ended = ""
    cloud_asked: int = 0


Event = Started | Token | Finished
