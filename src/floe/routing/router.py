"""A request's route: an explicit mix, a name, or the gate over adapters near the prompt.

What is asked for decides in this order (bug-log A20): `lora`, when given, is the whole mix and
adapters it does not list are off; else `model` names the base or one adapter; else, for "auto",
the gate chooses, moved by what the learner knows and by what loads cost. There are no scales that
outlive a request. What a tenant may not use does not exist for it.

Legend: K adapters, D width of the embedding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.adapter import AdapterManifest
from floe.core.errors import BadRequest, FloeError, NotFound
from floe.core.outcome import Outcome
from floe.core.request import AdapterScale, Request
from floe.core.route import Route, Share
from floe.core.sections import RoutingConfig
from floe.routing.candidates import Candidates, Known, listed, sort_out
from floe.routing.centroid import Embedding
from floe.routing.gate import Gated, gate
from floe.routing.general import General
from floe.routing.learner import BASE, Learner, Moved, Outlook

AUTO = "auto"
MAX_SCALE = 4.0
MAX_MIX = 8
_SHOWN_CHARS = 64
_MOST_TENANTS = 256


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The gate's answer over the candidates, and what moved it; None when nothing did."""

    gated: Gated
    moved: Moved | None
    before: Gated
    tried: int | None = None


class Router:
    """Chooses adapters by name or by content. Thread-safe.

    `adapters` gives what the store holds now; `base_names` (lower case) are the base's names.
    `fault` says why an adapter cannot be loaded ("" = it can): it is then reached by name only.
    `refusal` is the error of a name that the store has and does not serve, None for any other.
    Without an `embedding`, "auto" is the plain base. `learner` None leaves the gate alone.
    `resident` says by digest what is in memory, `load_ms` what a load takes. `allowed`: names and
    digests a tenant may use, None = all. `general` raises the threshold near general prompts.
    """

    def __init__(
        self,
        *,
        embedding: Embedding | None,
        adapters: Callable[[], Sequence[AdapterManifest]],
        base_names: Collection[str],
        config: RoutingConfig,
        fault: Callable[[AdapterManifest], str] = lambda _manifest: "",
        refusal: Callable[[str], FloeError | None] = lambda _name: None,
        learner: Learner | None = None,
        resident: Callable[[str], bool] = lambda _digest: True,
        load_ms: Callable[[AdapterManifest], float] = lambda _manifest: 0.0,
        allowed: Callable[[str], Collection[str] | None] = lambda _tenant: None,
        general: General | None = None,
    ) -> None:
        self._embedding = embedding
        self._adapters = adapters
        self._base_names = frozenset(base_names)
        self._config = config
        self._fault, self._refusal = fault, refusal
        self._learner, self._general = learner, general or General()
        self._resident, self._load_ms, self._allowed = resident, load_ms, allowed
        self._cached: dict[frozenset[str] | None, tuple[Known, Candidates]] = {}
        self._to_try: dict[str, int] = {}
        self._count: Counter[str] = Counter()

    def choose(self, request: Request) -> Route:
        """The adapters for this request, with their weights and the reason.

        Raises:
            NotFound: `model` or an adapter of `lora` is unknown; the message lists the known.
            FloeError: what `refusal` gives for it, such as Untrusted for a revoked one.
            BadRequest: a scale that is not finite or above 4 either way, a name twice, too many.
        """
        allowed = self._allowed(request.tenant)
        manifests = tuple(m for m in self._adapters() if _may(m, allowed))
        by_name = {m.name: m for m in manifests}
        if not (request.model == AUTO or self._is_base(request.model) or request.model in by_name):
            self._check_refusal(request.model, allowed)
            raise NotFound(
                f"The model `{request.model[:_SHOWN_CHARS]}` does not exist; known: "
                f"{', '.join([AUTO, *sorted(self._base_names), *sorted(by_name)])}",
                param="model",
            )
        if request.lora:
            for wanted in request.lora:
                if wanted.name not in by_name:
                    self._check_refusal(wanted.name, allowed)
            return _explicit(request.lora, by_name)
        if self._is_base(request.model):
            return Route(how="base", reason="the base model was asked for")
        if request.model == AUTO:
            return self._routed(request.topic(), allowed)
        manifest = by_name[request.model]
        share = Share(name=manifest.name, digest=manifest.digest, weight=1.0)
        return Route(shares=(share,), how="explicit", reason="asked for as the model")

    def _check_refusal(self, name: str, allowed: Collection[str] | None) -> None:
        """Raise why the store does not serve the name, if the tenant may know it."""
        if allowed is None or name in allowed:
            error = self._refusal(name)
            if error is not None:
                raise error

    # --- learning

    def learn(self, outcome: Outcome) -> bool:
        """Take in a served request; whether it said how good the answer was.

        Takes about a millisecond; values that are not finite are left out (F03).
        """
        if self._learner is None or self._embedding is None:
            return False
        topic_D = self._embedding(outcome.topic)
        if not topic_D.any():
            return False
        candidates = self._candidates(self._embedding)
        cos = _cosines(candidates, topic_D)
        by_digest = dict(zip(candidates.digests, cos.tolist(), strict=True))
        threshold = self._general.threshold(topic_D, self._config.threshold)
        return self._learner.learn(outcome, topic_D, by_digest, threshold=threshold)

    def feedback(
        self, request_id: str, *, thumbs: int | None = None, metric: float | None = None
    ) -> bool:
        """What people (1 or -1) or a task's metric (0 to 1) say of an answer.

        False when nothing is learned from it: no learner, or an id that is not remembered. An
        answer counts once.

        Raises:
            BadRequest: neither given, or a value out of range.
        """
        if self._learner is None:
            return False
        return self._learner.feedback(request_id, thumbs=thumbs, metric=metric)

    def forget(self, digest: str) -> None:
        """Drop what was learned of an adapter that is gone for good."""
        if self._learner is not None:
            self._learner.forget(digest)

    def outlook(self) -> Outlook | None:
        """What adapters would have been worth to recent prompts; None without a learner."""
        if self._learner is None or self._embedding is None:
            return None
        candidates = self._candidates(self._embedding)
        return self._learner.outlook(candidates.digests, candidates.centroids)

    @property
    def rewards(self) -> int:
        """Answers since the start of which something said how good they were."""
        count = self._learner.count if self._learner is not None else Counter[str]()
        return count["agreement"] + count["feedback"]

    def explore(self, pulls: Mapping[str, int]) -> None:
        """Adapters that should be tried so many times each, where they are near and in memory."""
        self._to_try = {digest: n for digest, n in pulls.items() if n > 0}

    def counters(self) -> dict[str, float]:
        """Realised shares of routed requests (B31) and what was learned, for metrics."""
        count, asked = self._count, max(self._count["asked"], 1)
        learned = self._learner.count if self._learner is not None else Counter[str]()
        return {
            "router_asked_total": count["asked"],
            "router_to_adapter_share": count["to_adapter"] / asked,
            "router_mixed_share": count["mixed"] / asked,
            "router_moved_total": count["moved"],
            "router_tried_total": count["tried"],
            "router_learned_total": self.rewards,
            "router_without_reward_total": learned["without_reward"],
            "router_save_failures_total": learned["save_failures"],
        }

    def close(self) -> None:
        """Save what was learned."""
        if self._learner is not None:
            self._learner.close()

    # --- the gate and what moves it

    def _is_base(self, model: str) -> bool:
        return model.lower() in self._base_names

    def _routed(self, topic: str, allowed: Collection[str] | None) -> Route:
        if self._embedding is None:
            return Route(how="base", reason="no embedding model: floe pull wordllama-256")
        candidates = self._candidates(self._embedding, allowed)
        also = f"; not routed to: {listed(candidates.skipped)}" if candidates.skipped else ""
        if not candidates.manifests:
            return Route(how="base", reason=f"no adapter has a place to route by{also}")
        topic_D = self._embedding(topic)
        if not topic_D.any():
            return Route(how="base", reason=f"nothing in the prompt to route by{also}")
        cos_K = _cosines(candidates, topic_D)
        threshold = self._general.threshold(topic_D, self._config.threshold)
        chosen = self._chosen(candidates, topic_D, cos_K, threshold=threshold)
        self._counted(chosen)
        shares = tuple(
            Share(name=m.name, digest=m.digest, weight=share)
            for m, share in ((candidates.manifests[k], share) for k, share in chosen.gated.shares)
        )
        names = [m.name for m in candidates.manifests]
        scores = sorted(zip(names, chosen.gated.softmax, strict=True), key=lambda s: (-s[1], s[0]))
        why = _reason(names, cos_K, chosen, threshold=threshold)
        return Route(
            shares=shares,
            how="routed" if shares else "base",
            reason=f"{why}{also}",
            scores=tuple(scores),
        )

    def _chosen(
        self, candidates: Candidates, topic_D: NDArray[np.float32], cos_K: NDArray[np.float64],
        *, threshold: float,
    ) -> _Chosen:  # fmt: skip
        before = self._gate(cos_K, threshold)
        if self._learner is None:
            return _Chosen(gated=before, moved=None, before=before)
        self._learner.remember(topic_D, threshold=threshold)
        here = np.fromiter(map(self._resident, candidates.digests), dtype=bool)
        tried = self._try(candidates, cos_K, here, threshold)
        if tried is not None:
            alone = Gated(shares=((tried, 1.0),), softmax=before.softmax)
            return _Chosen(gated=alone, moved=None, before=before, tried=tried)
        cost_K = self._costs(candidates, here)
        moved = self._learner.moved(candidates.digests, topic_D, cos_K, cost_K, threshold=threshold)
        if (moved.cos == cos_K).all():
            return _Chosen(gated=before, moved=None, before=before)
        return _Chosen(gated=self._gate(moved.cos, threshold), moved=moved, before=before)

    def _costs(self, candidates: Candidates, here: NDArray[np.bool_]) -> NDArray[np.float64]:
        """What a load of each would cost now, in nats a token; 0 for what is in memory."""
        per_ms, manifests = self._config.miss_cost_per_s / 1000, candidates.manifests
        return np.array(
            [0.0 if h else per_ms * self._load_ms(m) for m, h in zip(manifests, here, strict=True)]
        )

    def _gate(self, cos_K: NDArray[np.float64], threshold: float) -> Gated:
        return gate(
            cos_K.tolist(),
            temperature=self._config.temperature,
            top_k=self._config.top_k,
            threshold=threshold,
            min_share=self._config.min_share,
        )

    def _try(
        self, candidates: Candidates, cos_K: NDArray[np.float64], here: NDArray[np.bool_],
        threshold: float,
    ) -> int | None:  # fmt: skip
        """An adapter that should be tried, is in memory and as near as the gate asks for."""
        if not self._to_try:
            return None
        for k in np.flatnonzero(here & (cos_K >= threshold)):
            digest = candidates.manifests[k].digest
            left = self._to_try.get(digest, 0)
            if left > 0:
                self._to_try[digest] = left - 1
                return int(k)
        return None

    def _counted(self, chosen: _Chosen) -> None:
        self._count["asked"] += 1
        self._count["to_adapter"] += bool(chosen.gated.shares)
        self._count["mixed"] += len(chosen.gated.shares) > 1
        self._count["moved"] += chosen.gated.shares != chosen.before.shares
        self._count["tried"] += chosen.tried is not None

    def _candidates(
        self, embedding: Embedding, allowed: Collection[str] | None = None
    ) -> Candidates:
        """What can be routed to, of what is allowed; sorted out anew when the store changes."""
        manifests = (m for m in self._adapters() if _may(m, allowed))
        known: Known = tuple((m, bool(self._fault(m))) for m in manifests)
        key = None if allowed is None else frozenset(allowed)
        cached = self._cached.get(key)
        if cached is None or cached[0] != known:
            width = len(embedding(""))
            cached = (known, sort_out(known, digest=embedding.digest, width=width))
            if len(self._cached) >= _MOST_TENANTS:
                self._cached.clear()
            self._cached[key] = cached
            if self._learner is not None and cached[1].manifests:
                self._learner.meet(cached[1].digests, cached[1].centroids)
        return cached[1]


def _cosines(candidates: Candidates, topic_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines (K,)."""
    if not candidates.manifests:
        return np.zeros(0)
    return (candidates.centroids @ topic_D).astype(np.float64)


def _may(manifest: AdapterManifest, allowed: Collection[str] | None) -> bool:
    return allowed is None or manifest.name in allowed or manifest.digest in allowed


def _reason(
    names: Sequence[str], cos_K: NDArray[np.float64], chosen: _Chosen, *, threshold: float
) -> str:
    """Why this route, in words: the gate's reason, and what moved it from there."""
    best = int(np.argmax(cos_K))
    nearest = f"nearest adapter {names[best]}, cosine {cos_K[best]:.2f}"
    below = "" if chosen.before.shares else f", below {threshold:.2f}"
    if chosen.tried is not None:
        return f"{nearest}{below}; {names[chosen.tried]} is tried, little is known of it"
    if chosen.moved is None or chosen.gated.shares == chosen.before.shares:
        return f"{nearest}{below}"
    old = [k for k, _ in chosen.before.shares]
    new = [k for k, _ in chosen.gated.shares]
    told = ", ".join(_moved(names[k], chosen.moved, k) for k in dict.fromkeys(new + old))
    named = " and ".join(names[k] for k in new) or f"the {BASE}"
    what = f"{named} in other shares" if new == old else f"{named} instead"
    return f"{nearest}{below}; {what}, in nats a token: {told}"


def _moved(name: str, moved: Moved, k: int) -> str:
    parts = [f"learned {moved.learned[k]:+.2f}"]
    if round(float(moved.bonus[k]), 2):
        parts.append(f"little known {moved.bonus[k]:+.2f}")
    if round(float(moved.cost[k]), 2):
        parts.append(f"load {-moved.cost[k]:+.2f}")
    return f"{name} {' '.join(parts)}"


def _explicit(lora: Sequence[AdapterScale], by_name: dict[str, AdapterManifest]) -> Route:
    if len(lora) > MAX_MIX:
        raise BadRequest(f"lora has {len(lora)} adapters; at most {MAX_MIX}", param="lora")
    seen: dict[str, str] = {}
    shares = []
    for index, wanted in enumerate(lora):
        where = f"lora[{index}]"
        manifest = by_name.get(wanted.name)
        if manifest is None:
            raise NotFound(
                f"{where}: no adapter `{wanted.name[:_SHOWN_CHARS]}`; known: "
                f"{', '.join(sorted(by_name)) or 'none'}",
                param=f"{where}.id",
            )
        if not (math.isfinite(wanted.scale) and abs(wanted.scale) <= MAX_SCALE):
            raise BadRequest(
                f"{where}.scale must be a number between -{MAX_SCALE:g} and {MAX_SCALE:g} "
                "(1 = as trained)",
                param=f"{where}.scale",
            )
        if manifest.digest in seen:
            other = seen[manifest.digest]
            twice = "is listed twice" if other == manifest.name else f"is the same as {other}"
            raise BadRequest(
                f"{where}: adapter {manifest.name} {twice}; list it once", param=f"{where}.id"
            )
        seen[manifest.digest] = manifest.name
        if wanted.scale != 0:  # off is off: nothing to load
            shares.append(
                Share(name=manifest.name, digest=manifest.digest, weight=float(wanted.scale))
            )
    return Route(shares=tuple(shares), how="explicit", reason="asked for as lora")
