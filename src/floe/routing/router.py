"""A request's route: an explicit mix, a name, or the gate over adapters near the prompt.

What is asked for decides in this order (bug-log A20): `lora`, when given, is the whole mix and
adapters it does not list are off; else `model` names the base or one adapter; else, for "auto",
the gate chooses. There are no scales that outlive a request.

Legend: K adapters, D width of the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.adapter import AdapterManifest
from floe.core.config import RoutingConfig
from floe.core.errors import BadRequest, NotFound
from floe.core.request import AdapterScale, Request
from floe.core.route import Route, Share
from floe.routing.centroid import Embedding
from floe.routing.gate import gate

AUTO = "auto"
MAX_SCALE = 4.0
MAX_MIX = 8
_SHOWN_CHARS = 64
_SHOWN_NAMES = 5
_FAILED = "it cannot be loaded; see the model's reason in /v1/models"


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Adapters that can be routed to, their unit centroids (K, D), and why others cannot."""

    manifests: tuple[AdapterManifest, ...]
    centroids: NDArray[np.float32]
    skipped: tuple[tuple[str, str], ...]


_Known = tuple[tuple[AdapterManifest, bool], ...]
"""What the store holds, and whether it is known that it cannot be loaded."""


class Router:
    """Chooses adapters by name or by content.

    `adapters` gives what the store holds now; `base_names` (lower case) are the base's names.
    `fault` says why an adapter cannot be loaded ("" = it can): it is then reached by name only.
    Without an `embedding`, "auto" is the plain base.
    """

    def __init__(
        self,
        *,
        embedding: Embedding | None,
        adapters: Callable[[], Sequence[AdapterManifest]],
        base_names: Collection[str],
        config: RoutingConfig,
        fault: Callable[[AdapterManifest], str] = lambda _manifest: "",
    ) -> None:
        self._embedding = embedding
        self._adapters = adapters
        self._base_names = frozenset(base_names)
        self._config = config
        self._fault = fault
        self._cached: tuple[_Known, _Candidates] | None = None

    def choose(self, request: Request) -> Route:
        """The adapters for this request, with their weights and the reason.

        Raises:
            NotFound: `model` or an adapter of `lora` is unknown; the message lists the known.
            BadRequest: a scale that is not finite or above 4 either way, a name twice, too many.
        """
        manifests = tuple(self._adapters())
        by_name = {m.name: m for m in manifests}
        if not (request.model == AUTO or self._is_base(request.model) or request.model in by_name):
            raise NotFound(
                f"The model `{request.model[:_SHOWN_CHARS]}` does not exist; known: "
                f"{', '.join([AUTO, *sorted(self._base_names), *sorted(by_name)])}",
                param="model",
            )
        if request.lora:
            return _explicit(request.lora, by_name)
        if self._is_base(request.model):
            return Route(how="base", reason="the base model was asked for")
        if request.model == AUTO:
            return self._routed(request.topic(), manifests)
        manifest = by_name[request.model]
        share = Share(name=manifest.name, digest=manifest.digest, weight=1.0)
        return Route(shares=(share,), how="explicit", reason="asked for as the model")

    def _is_base(self, model: str) -> bool:
        return model.lower() in self._base_names

    def _routed(self, topic: str, manifests: tuple[AdapterManifest, ...]) -> Route:
        if self._embedding is None:
            return Route(how="base", reason="no embedding model: floe pull wordllama-256")
        candidates = self._candidates(manifests, self._embedding)
        also = f"; not routed to: {_listed(candidates.skipped)}" if candidates.skipped else ""
        if not candidates.manifests:
            return Route(how="base", reason=f"no adapter has a place to route by{also}")
        topic_D = self._embedding(topic)
        if not topic_D.any():
            return Route(how="base", reason=f"nothing in the prompt to route by{also}")
        cos_K = (candidates.centroids @ topic_D).tolist()
        gated = gate(
            cos_K,
            temperature=self._config.temperature,
            top_k=self._config.top_k,
            threshold=self._config.threshold,
            min_share=self._config.min_share,
        )
        chosen = [(candidates.manifests[k], share) for k, share in gated.shares]
        best = int(np.argmax(cos_K))
        nearest = f"nearest adapter {candidates.manifests[best].name}, cosine {cos_K[best]:.2f}"
        below = "" if chosen else f", below {self._config.threshold:.2f}"
        names = [m.name for m in candidates.manifests]
        scores = sorted(zip(names, gated.softmax, strict=True), key=lambda s: (-s[1], s[0]))
        return Route(
            shares=tuple(Share(name=m.name, digest=m.digest, weight=w) for m, w in chosen),
            how="routed" if chosen else "base",
            reason=f"{nearest}{below}{also}",
            scores=tuple(scores),
        )

    def _candidates(
        self, manifests: tuple[AdapterManifest, ...], embedding: Embedding
    ) -> _Candidates:
        known: _Known = tuple((manifest, bool(self._fault(manifest))) for manifest in manifests)
        if self._cached is None or self._cached[0] != known:
            width = len(embedding(""))
            self._cached = (known, _sort_out(known, digest=embedding.digest, width=width))
        return self._cached[1]


def _sort_out(known: _Known, *, digest: str, width: int) -> _Candidates:
    """Part the adapters that load and that this embedding can place from others, with reasons."""
    kept: dict[str, tuple[AdapterManifest, NDArray[np.float64]]] = {}
    skipped = []
    for manifest, cannot_load in known:
        fault = _FAILED if cannot_load else _fault(manifest, digest=digest, width=width)
        if fault is None and manifest.centroid is not None:
            vector_D = np.asarray(manifest.centroid.vector, dtype=np.float64)
            # One adapter under two names has one share, under the first.
            kept.setdefault(manifest.digest, (manifest, vector_D / np.linalg.norm(vector_D)))
        else:
            skipped.append((manifest.name, fault or ""))
    return _Candidates(
        manifests=tuple(m for m, _ in kept.values()),
        centroids=np.array([v for _, v in kept.values()], dtype=np.float32),
        skipped=tuple(skipped),
    )


def _listed(skipped: Sequence[tuple[str, str]]) -> str:
    """Names by reason, each reason once; many names of one reason are counted."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped:
        by_reason.setdefault(reason, []).append(name)
    said = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        each = f"each of {len(names)}: " if len(names) > 1 else ""
        said.append(f"{', '.join(names[:_SHOWN_NAMES])}{more} ({each}{reason})")
    return ", ".join(said)


def _fault(manifest: AdapterManifest, *, digest: str, width: int) -> str | None:
    """Why an adapter has no place under this embedding; None when it has one."""
    centroid = manifest.centroid
    if centroid is None:
        return "it has no centroid"
    if centroid.encoder_digest != digest:
        return "its centroid was made with another embedding"
    vector_D = np.asarray(centroid.vector, dtype=np.float64)
    if len(vector_D) != width:
        return f"its centroid has {len(vector_D)} numbers, the embedding {width}"
    length = np.linalg.norm(vector_D)
    if not (np.isfinite(length) and length > 0):
        return "its centroid has no direction"
    return None


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
