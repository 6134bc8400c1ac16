"""Clusters that hide two tasks, told apart by what their members changed from one start.

The members of a cluster begin a round with one adapter. Tasks that looked alike at first, such as
antonyms and synonyms, then pull it different ways (Sattler et al., Clustered Federated Learning,
2019, split by the cosine of updates). What was split stays apart: later adapters look alike again,
for they began alike.

Legend: N members of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from floe.federated.clusters import Cluster, Clustering, labels_of
from floe.federated.silhouette import Labels
from floe.federated.similarity import similarity
from floe.federated.update import AdapterState

_LEAST = 2  # members that a part must have: what one device changed may be noise
_WIDE = 0.1  # silhouette of a split; parts of one task's devices stay below it (test_splits.py)


def split_clusters(
    found: Clustering, changes: Mapping[str, AdapterState], *, previous: Clustering | None = None
) -> Clustering:
    """`found` with the splits of `previous` kept and those that `changes` ask for added.

    `changes` are what clients changed against the adapter their round began with, by name, in
    directions that devices of all ranks have (`comparable.direction`); only clients of `previous`,
    who began with its adapters, are compared. A cluster is split where the similarities of its
    members' changes form groups of two or more by the rule of `clusters.group`.
    """
    kept = _kept_apart(found, previous)
    for cluster in kept.clusters:
        known = [m for m in cluster.members if m in changes and _began(m, previous) == cluster.id]
        if len(known) < 2 * _LEAST:
            continue
        labels_N, width = labels_of(similarity([changes[m] for m in known]))
        if width >= _WIDE and min(np.bincount(labels_N)) >= _LEAST:
            kept = _apart(kept, cluster, _parts(cluster, known, labels_N))
    return kept


def _began(client: str, previous: Clustering | None) -> str:
    return previous.cluster_of(client) if previous else ""


def _parts(cluster: Cluster, known: Sequence[str], labels_N: Labels) -> list[list[str]]:
    """The parts by their first member's name; whoever was not compared stays with the first."""
    parts: list[list[str]] = [[] for _ in range(int(labels_N.max()) + 1)]
    for member, label in zip(known, labels_N, strict=True):
        parts[int(label)].append(member)
    parts.sort(key=min)
    parts[0] += [m for m in cluster.members if m not in known]
    return parts


def _kept_apart(found: Clustering, previous: Clustering | None) -> Clustering:
    """Members of clusters that were split before are not put together again."""
    if previous is None or not previous.split:
        return found
    kept = replace(found, split=previous.split)
    for cluster in found.clusters:
        by_old: dict[str, list[str]] = {}
        for member in cluster.members:
            old = previous.cluster_of(member)
            by_old.setdefault(old if old in previous.split else "", []).append(member)
        others = by_old.pop("", [])
        if len(by_old) < 2:
            continue
        home = cluster.id if cluster.id in by_old else min(by_old)
        by_old[home] += others
        kept = _renamed(kept, cluster, by_old)
    return kept


def _apart(found: Clustering, cluster: Cluster, parts: Sequence[Sequence[str]]) -> Clustering:
    """The first part keeps the id, the others get new ones."""
    new = [f"c{found.next_id + k}" for k in range(len(parts) - 1)]
    named = dict(zip([cluster.id, *new], parts, strict=True))
    wider = replace(
        found,
        next_id=found.next_id + len(new),
        split=tuple(sorted({*found.split, cluster.id, *new})),
    )
    return _renamed(wider, cluster, named)


def _renamed(found: Clustering, cluster: Cluster, named: Mapping[str, Sequence[str]]) -> Clustering:
    parts = [
        replace(cluster, id=name, members=tuple(sorted(members))) for name, members in named.items()
    ]
    clusters = [c for c in found.clusters if c.id != cluster.id] + parts
    own = {m: name for name, members in named.items() for m in members}
    memberships = {
        client: {own[client]: 1.0} if client in own else shares
        for client, shares in found.memberships.items()
    }
    return replace(
        found,
        clusters=tuple(sorted(clusters, key=lambda c: (len(c.id), c.id))),
        memberships=memberships,
    )
