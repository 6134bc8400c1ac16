"""What can be routed to, of what the store holds, and why the rest cannot.

Legend: K adapters, D width of the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.core.adapter import AdapterManifest

_SHOWN_NAMES = 5
_FAILED = "it cannot be loaded; see the model's reason in /v1/models"


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Adapters that can be routed to, their unit centroids (K, D), and why others cannot."""

    manifests: tuple[AdapterManifest, ...]
    centroids: NDArray[np.float32]
    skipped: tuple[tuple[str, str], ...]
    digests: tuple[str, ...]


Known = tuple[tuple[AdapterManifest, bool], ...]
"""What the store holds, and whether it is known that it cannot be loaded."""


def sort_out(known: Known, *, digest: str, width: int) -> Candidates:
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
    return Candidates(
        manifests=tuple(m for m, _ in kept.values()),
        centroids=np.array([v for _, v in kept.values()], dtype=np.float32),
        skipped=tuple(skipped),
        digests=tuple(kept),
    )


def listed(skipped: Sequence[tuple[str, str]]) -> str:
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
