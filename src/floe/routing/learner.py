"""The bandit beside the gate: cosines in, cosines out, moved by what was learned and by costs.

An arm's index is `nats_per_cosine * cosine + learned + bonus - cost`; the plain base is an arm
too, whose cosine is the gate's threshold. The indices go back to the gate as cosines, relative to
the base. So with nothing learned and equal costs the gate decides alone, mixtures included, and
whatever was learned or costs less moves its choice by as much as it is worth.

Costs count above the cheapest adapter's: in an empty memory the first load is worth its price.
And a load pays for more than one request, which no index of one request can see. So for every
adapter it is added up, fading over some FADES requests, what requests lose (or would lose) without
it. Of what an adapter out of memory has there above the least of those in memory, a part of
1 / MISSED is taken off its price: what is missed again and again is loaded in the end. Nothing of
this is learned; FADES and MISSED were chosen with utilities known, on worlds of other seeds.

Legend: W width of the embedding, D of the context, K adapters, T recent contexts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig, BadRequest
from floe.core.outcome import Outcome
from floe.core.route import Route
from floe.core.sections import RoutingConfig
from floe.routing.bandit import Bandit, Settings
from floe.routing.features import Projection
from floe.routing.reward import better_than_usual, utility
from floe.routing.state import Belongs, keep_aside, load_state, save_state

FloatArray = NDArray[np.float64]
BASE = "base"
KEPT = 4_096
RECENT = 512
SAVE_AFTER = 64
SAVE_AFTER_S = 60.0
ALIKE = 0.9
TRUST = 0.5
FADES = 32
MISSED = 4.0
DOUBT = 8.0
_log = logging.getLogger("floe.routing")


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Cosines (K,) as the gate should see them, and what moved them, in nats per token.

    `learned` and `bonus` are relative to the base's; `cost` is above the cheapest adapter's and
    less what going without it has cost lately.
    """

    cos: FloatArray
    learned: FloatArray
    bonus: FloatArray
    cost: FloatArray


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the slow time scale plans with: utilities (T, K) over the base's, by adapter."""

    digests: tuple[str, ...]
    utilities: FloatArray
    samples: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """An answer that people may still speak about."""

    x_D: FloatArray
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arms:
    """Adapters of a decision as the bandit wants them, and where each stands."""

    digests: Sequence[str]
    with_base: tuple[str, ...]
    place: Mapping[str, int]


class Learner:
    """What the router learns. Thread-safe; `learn` and `feedback` never wait for the disk.

    `path` None learns for this process only. `model` is the base model's digest. `saves_up`
    False charges each load in full to its request.
    """

    def __init__(
        self,
        *,
        config: RoutingConfig,
        encoder_digest: str,
        embedding_width: int,
        model: str = "",
        path: Path | None = None,
        saves_up: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._path, self._clock_s = config, path, clock_s
        self._project = Projection(
            encoder_digest=encoder_digest,
            embedding_width=embedding_width,
            width=config.context_width,
        )
        self.bandit = Bandit(
            Settings(
                width=self._project.width,
                exploration=config.exploration,
                forgetting=config.forgetting,
                doubt=DOUBT,
            )
        )
        self._belongs = Belongs(model=model, encoder=encoder_digest, width=self._project.width)
        self._answered: OrderedDict[str, _Answered] = OrderedDict()
        self._recent: deque[tuple[NDArray[np.float32], float]] = deque(maxlen=RECENT)
        self._missed: dict[str, float] = {}
        self._saves_up = saves_up
        self._asked = _Arms(digests=(), with_base=(BASE,), place={})
        self._places: dict[str, NDArray[np.float32]] = {}
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._unsaved, self._saved_at_s = 0, clock_s()
        self.count: Counter[str] = Counter()
        self.notice = self._open()

    def _open(self) -> str:
        """Load the state; why it could not be used, "" when it could or there is none."""
        if self._path is None or not self._path.exists():
            return ""
        try:
            self.bandit.restore(*load_state(self._path, self._belongs))
        except (BadConfig, ValueError, KeyError, TypeError) as error:
            said = error.message if isinstance(error, BadConfig) else f"{self._path} is not sound"
            _log.warning("what the router had learned is not used: %s", said)
            return said
        return ""

    # --- deciding

    def moved(
        self, digests: Sequence[str], embedding_W: NDArray[np.float32], cos_K: FloatArray,
        cost_K: FloatArray, *, threshold: float,
    ) -> Moved:  # fmt: skip
        """The cosines after what was learned and what loads would cost (nats per token, >= 0).

        `threshold` is the base's cosine for this prompt.
        """
        config, x_D = self._config, self._project(embedding_W)
        gain, price_K = config.nats_per_cosine, cost_K - cost_K.min()
        over_K = self._left_to_pay(digests, price_K)
        offset = np.append(gain * cos_K - over_K, gain * threshold)
        arms = self._arms(digests).with_base
        found = self.bandit.scores(arms, x_D, offset, top=config.top_k + 1)
        learned = found.learned[:-1] - found.learned[-1]
        bonus = found.bonus[:-1] - found.bonus[-1]
        free = cos_K + (learned + bonus) / gain
        moved = free - over_K / gain if over_K.any() else free
        if self._saves_up and price_K.any():
            self._save_up(digests, gain * (free - threshold), price_K == 0.0)
        return Moved(cos=moved, learned=learned, bonus=bonus, cost=over_K)

    def _left_to_pay(self, digests: Sequence[str], price_K: FloatArray) -> FloatArray:
        """Prices less what going without has cost above the least needed one in memory."""
        with self._lock:
            if not self._missed:
                return price_K
            place, missed_K = self._arms(digests).place, np.zeros(len(digests))
            for digest, missed in self._missed.items():
                if digest in place:
                    missed_K[place[digest]] = missed
        here = price_K == 0.0
        least = float(missed_K[here].min()) if here.any() else 0.0
        return np.maximum(price_K - np.maximum(missed_K - least, 0.0) / MISSED, 0.0)

    def _save_up(
        self, digests: Sequence[str], worth_K: FloatArray, here: NDArray[np.bool_]
    ) -> None:
        """Add what this prompt loses, or would lose, without its best adapter in memory.

        `worth_K`: utilities over the base; without it, the best of the others in memory answers.
        """
        best = int(worth_K.argmax())
        others = here.copy()
        others[best] = False
        without = max(0.0, float(worth_K[others].max())) if others.any() else 0.0
        lost = float(worth_K[best]) - without
        with self._lock:
            faded = {d: v * (1 - 1 / FADES) for d, v in self._missed.items() if v > 1e-3}
            if lost > 0:
                faded[digests[best]] = faded.get(digests[best], 0.0) + lost
            self._missed = faded

    def _arms(self, digests: Sequence[str]) -> _Arms:
        """The arms of a decision; the same record while `digests` is the same, which is quick."""
        asked = self._asked
        if asked.digests is not digests:
            asked = self._asked = _Arms(
                digests=digests,
                with_base=(*digests, BASE),
                place={digest: k for k, digest in enumerate(digests)},
            )
        return asked

    def remember(self, embedding_W: NDArray[np.float32], *, threshold: float) -> None:
        """A prompt that was routed, for the slow time scale; the last 512 in memory only."""
        with self._lock:
            self._recent.append((embedding_W, threshold))

    def meet(self, digests: Sequence[str], centroids_KW: NDArray[np.float32]) -> None:
        """Adapters that can be routed to now; new ones begin from a trained one alike, if any."""
        with self._lock:
            known = {d: v for d, v in self._places.items() if self.bandit.phase(d) == "trained"}
            if len(self._places) > KEPT:
                self._places = known
            self._places.update(zip(digests, centroids_KW, strict=True))
        if not known:
            return
        names, places = list(known), np.array(list(known.values()))
        for digest, centroid_W in zip(digests, centroids_KW, strict=True):
            if self.bandit.phase(digest) == "cold":
                cos = places @ centroid_W
                best = int(np.argmax(cos))
                if cos[best] >= ALIKE:
                    self.bandit.warm_start(digest, names[best], trust=TRUST)

    def outlook(self, digests: Sequence[str], centroids_KW: NDArray[np.float32]) -> Outlook:
        """Expected utilities over the base's of the recent prompts, with how much was seen."""
        with self._lock:
            recent = np.array([e for e, _ in self._recent], dtype=np.float64)
            thresholds_T = np.array([threshold for _, threshold in self._recent])
        samples = tuple(self.bandit.count(d) for d in digests)
        if not len(recent):
            empty = np.zeros((0, len(digests)))
            return Outlook(digests=tuple(digests), utilities=empty, samples=samples)
        x_TD = np.array([self._project(e) for e in recent])
        learned = self.bandit.predicted([*digests, BASE], x_TD)
        cos_TK = recent @ centroids_KW.T.astype(np.float64)
        prior = self._config.nats_per_cosine * (cos_TK - thresholds_T[:, None])
        return Outlook(
            digests=tuple(digests),
            utilities=prior + learned[:, :-1] - learned[:, -1:],
            samples=samples,
        )

    # --- learning

    def learn(
        self, outcome: Outcome, embedding_W: NDArray[np.float32],
        cos_by_digest: Mapping[str, float], *, threshold: float,
    ) -> bool:  # fmt: skip
        """Take in a served request; whether it said how good the answer was."""
        shares = _credited(outcome.route)
        if not shares:
            return False
        x_D = self._project(embedding_W)
        with self._lock:
            self._answered[outcome.request_id] = _Answered(x_D=x_D, shares=shares)
            while len(self._answered) > KEPT:
                self._answered.popitem(last=False)
        said = utility(outcome, miss_cost_per_s=self._config.miss_cost_per_s)
        if said is None or not self._config.agreement:
            self.count["without_reward"] += 1
            return False
        reward, weight = said
        for arm, share in shares:
            cos = cos_by_digest.get(arm, threshold)
            prior = self._config.nats_per_cosine * (cos - threshold)
            self.bandit.update(arm, x_D, reward - prior, weight=weight * share)
        self._learned("agreement")
        return True

    def feedback(
        self, request_id: str, *, thumbs: int | None = None, metric: float | None = None
    ) -> bool:
        """What people or a test say of an answer; False when it is not remembered (any more).

        An answer counts once.

        Raises:
            BadRequest: thumbs other than 1 and -1, a metric outside 0 to 1 or not finite (F03).
        """
        if thumbs not in (None, 1, -1):
            raise BadRequest("thumbs must be 1 or -1", param="thumbs")
        if metric is not None and not (math.isfinite(metric) and 0 <= metric <= 1):
            raise BadRequest("metric must be a number between 0 and 1", param="metric")
        if thumbs is None and metric is None:
            raise BadRequest("say something: thumbs, metric, or both", param="thumbs")
        with self._lock:
            answered = self._answered.pop(request_id, None)
        if answered is None:
            return False
        better = better_than_usual(thumbs=thumbs, metric=metric)
        for arm, share in answered.shares:
            self.bandit.update_relative(arm, answered.x_D, better, weight=share)
        self._learned("feedback")
        return True

    def _learned(self, kind: str) -> None:
        self.count[kind] += 1
        self._unsaved += 1
        late = self._clock_s() - self._saved_at_s >= SAVE_AFTER_S
        if self._path is not None and (self._unsaved >= SAVE_AFTER or late):
            self._saved_at_s, self._unsaved = self._clock_s(), 0
            threading.Thread(target=self._save_quietly, name="floe-router-state").start()

    def forget(self, digest: str) -> None:
        """Drop what was learned of an adapter that is gone for good."""
        self.bandit.forget(digest)
        with self._lock:
            self._places.pop(digest, None)

    # --- state

    def save(self) -> None:
        """Write the state now. Raises OSError when it cannot be written."""
        if self._path is None:
            return
        with self._saving:
            if self.notice and self._path.exists():
                _log.warning("kept aside as %s", keep_aside(self._path))
            self.notice = ""
            save_state(self._path, self._belongs, *self.bandit.arrays())

    def _save_quietly(self) -> None:
        try:
            self.save()
        except OSError as error:  # it is tried again with the next observations
            self.count["save_failures"] += 1
            _log.warning("the router's state was not saved: %s", error.strerror)

    def close(self) -> None:
        """Save what was learned since the last time."""
        if self._unsaved:
            self._unsaved = 0
            self._save_quietly()


def _credited(route: Route) -> tuple[tuple[str, float], ...]:
    """Which arms an answer speaks about, with their parts in it.

    A mix that was asked for by hand says nothing about one of its adapters.
    """
    if not route.shares:
        return ((BASE, 1.0),)
    if route.how == "routed" or (len(route.shares) == 1 and route.shares[0].weight == 1.0):
        return tuple((s.digest, s.weight) for s in route.shares if 0 < s.weight <= 1)
    return ()
