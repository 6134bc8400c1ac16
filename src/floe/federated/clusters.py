"""Which devices learn the same task, from their updates alone.

Similarity is that of products B A (of the change against the common start), never of raw A or B:
devices that began with one A share it for ever, whatever they learn. Grouping is agglomerative
with average linkage on 1 - similarity; the number of groups has the best silhouette unless given.
Devices of one task that learned it more or less well have faint groups too: those count only if
the similarities are not the products of one number per device.

Legend: N clients, K clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from floe.core.errors import BadConfig, BadRound, Missing
from floe.federated.products import Doubles
from floe.federated.silhouette import Labels, beyond_one_task, silhouette
from floe.federated.similarity import similarity
from floe.federated.update import AdapterState

CLEAR = 0.25  # a silhouette from which groups are taken as they are
FAINT = 0.05  # one from which they are taken if one task cannot explain the similarities
UNEXPLAINED = 0.15  # the share of similarity that one task must leave unexplained for that
_ONE_TASK = 0.5  # two devices have no silhouette: at this similarity they share a task
_SAME_TASK = 0.3  # similarity from which a group takes on the id of a published adapter


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Clients with one task. `cohesion` is their mean similarity to each other, 1 when alone."""

    id: str
    members: tuple[str, ...]
    cohesion: float


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """The groups of a round, in order of their ids.

    `silhouette` is in [-1, 1], 0 where there is one group. `memberships` are each client's shares
    over all clusters, summing to 1. `absent` are the clusters of clients of earlier rounds that
    were not in this one. `next_id` is the number of the next new cluster: ids are never used
    twice. `split` are the ids that came of splitting a cluster (`splits.split_clusters`).
    """

    clusters: tuple[Cluster, ...]
    silhouette: float
    memberships: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    next_id: int = 0
    split: tuple[str, ...] = ()

    def cluster_of(self, client: str) -> str:
        """The id of a client's cluster, also when it was absent; "" when it is in none."""
        here = (c.id for c in self.clusters if client in c.members)
        return next(here, self.absent.get(client, ""))

    def as_json(self) -> dict[str, Any]:
        """The grouping as plain values, for a state file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Clustering:
        """What `as_json` gave, read again.

        Raises:
            KeyError, TypeError: it is no grouping.
        """
        clusters = tuple(
            Cluster(id=c["id"], members=tuple(c["members"]), cohesion=c["cohesion"])
            for c in data["clusters"]
        )
        return cls(
            clusters=clusters,
            silhouette=data["silhouette"],
            memberships=data["memberships"],
            absent=data["absent"],
            next_id=data["next_id"],
            split=tuple(data.get("split", ())),
        )

    def all_members(self) -> dict[str, set[str]]:
        """The clients of each cluster, present and absent, by id."""
        out = {c.id: set(c.members) for c in self.clusters}
        for client, name in self.absent.items():
            out.setdefault(name, set()).add(client)
        return out


@dataclass(frozen=True, kw_only=True)
class Match:
    """The cluster an update is nearest to, and how near, with the similarity to each."""

    cluster: str
    similarity: float
    similarities: Mapping[str, float]


def group(
    states: Mapping[str, AdapterState],
    *,
    start: AdapterState | None = None,
    n_clusters: int | None = None,
    kind: str = "cosine",
    previous: Clustering | None = None,
    published: Mapping[str, AdapterState] | None = None,
    temperature: float = 0.1,
    at_most: int = 16,
) -> Clustering:
    """Clients' adapters, by name, in groups; the same whoever answered first.

    `n_clusters` None takes the best silhouette among 1 to `at_most`. `previous` lends its ids to
    the groups with which they share most members, and where they share none, to those nearest to
    the adapters `published` under them. `temperature` is that of the soft memberships.

    Raises:
        BadRound: no adapters, or values that are not finite. BadConfig: a number of clusters
            that cannot be, or no such kind.
    """
    clients, old = sorted(states), sorted(published or {})
    known = [states[c] for c in clients] + [(published or {})[i] for i in old]
    similar = similarity(known, start=start, kind=kind)
    n = len(clients)
    return group_similar(
        clients, similar[:n, :n], n_clusters=n_clusters, previous=previous,
        near={i: similar[:n, n + k] for k, i in enumerate(old)}, temperature=temperature,
        at_most=at_most,
    )  # fmt: skip


def group_similar(
    clients: Sequence[str],
    similar_NN: Doubles,
    *,
    n_clusters: int | None = None,
    previous: Clustering | None = None,
    near: Mapping[str, Doubles] | None = None,
    temperature: float = 0.1,
    at_most: int = 16,
) -> Clustering:
    """`group` from similarities at hand, such as those of sketches; clients in order of name.

    `near` are the clients' similarities to what was published, by cluster id.

    Raises:
        BadRound: no clients, or similarities that are not finite. BadConfig: as `group`.
    """
    if not clients:
        raise BadRound("no update was taken in, so there is nothing to group")
    if not np.isfinite(similar_NN).all():
        worst = clients[int((~np.isfinite(similar_NN)).sum(axis=1).argmax())]
        raise BadRound(f"the update of {worst!r} holds values that are not finite: no grouping")
    if n_clusters is not None and not 1 <= n_clusters <= len(clients):
        raise BadConfig(
            f"{len(clients)} clients cannot form {n_clusters} clusters", param="n_clusters"
        )
    labels_N, width = _labels(similar_NN, n_clusters, at_most)
    ids, next_id = stable_ids(clients, labels_N, previous, near)
    return _described(
        clients, similar_NN, labels_N, ids, width, temperature,
        absent=_absent(previous, clients), next_id=next_id,
    )  # fmt: skip


def match(
    state: AdapterState,
    clusters: Mapping[str, AdapterState],
    *,
    start: AdapterState | None = None,
    kind: str = "cosine",
) -> Match:
    """The published adapter, by cluster id, to which a new client's update is nearest.

    Raises:
        BadRound: there are no clusters yet.
    """
    if not clusters:
        raise BadRound("there are no clusters yet that a new client could join")
    ids = sorted(clusters)
    row = similarity([state, *(clusters[i] for i in ids)], start=start, kind=kind)[0, 1:]
    found = {i: float(x) for i, x in zip(ids, row, strict=True)}
    best = max(ids, key=lambda i: found[i])
    return Match(cluster=best, similarity=found[best], similarities=found)


def stable_ids(
    clients: Sequence[str],
    labels_N: Labels,
    previous: Clustering | None,
    near: Mapping[str, Doubles] | None = None,
) -> tuple[list[str], int]:
    """An id for each label from 0, and the number for the next new one.

    Old ids go to the groups that share most members with them, then to those that are most similar
    (Hungarian assignment over both); `near` are the clients' similarities to what was published
    under an id. A group with neither gets a new id, in order of its first client's name.
    """
    groups = [np.flatnonzero(labels_N == j) for j in range(int(labels_N.max()) + 1)]
    members = [{clients[int(i)] for i in inside} for inside in groups]
    old = previous.all_members() if previous else {}
    ids = [""] * len(groups)
    if old:
        shared = np.array([[len(m & olds) for olds in old.values()] for m in members], np.float64)
        like = np.array(
            [[float(near[i][g].mean()) if near and i in near else 0.0 for i in old] for g in groups]
        )
        for j, k in zip(*_assignment(-(shared + 0.5 * like)), strict=True):
            if shared[j, k] or like[j, k] >= _SAME_TASK:
                ids[j] = list(old)[k]
    next_id = previous.next_id if previous else 0
    for j in sorted(range(len(groups)), key=lambda j: min(members[j])):
        if not ids[j]:
            ids[j], next_id = f"c{next_id}", next_id + 1
    return ids, next_id


def labels_of(similar_NN: Doubles) -> tuple[Labels, float]:
    """Groups by the rule of `group`, labelled from 0 in order of first appearance; silhouette."""
    return _labels(similar_NN, None, len(similar_NN))


def _labels(similar_NN: Doubles, n_clusters: int | None, at_most: int) -> tuple[Labels, float]:
    """Labels from 0 in order of first appearance, and their silhouette."""
    n = len(similar_NN)
    distances_NN = np.maximum(1.0 - similar_NN, 0.0)
    if n_clusters is not None:
        labels = _cut_tree(distances_NN, n_clusters)
        return labels, silhouette(distances_NN, labels)
    one = np.zeros(n, np.int64)
    tries = [_cut_tree(distances_NN, k) for k in range(2, min(at_most, n - 1) + 1)]
    scored = [(silhouette(distances_NN, labels), labels) for labels in tries]
    width, labels = max(scored, key=lambda pair: pair[0], default=(0.0, one))
    if width >= CLEAR or (width >= FAINT and beyond_one_task(similar_NN) >= UNEXPLAINED):
        return labels, width
    if n == 2 and similar_NN[0, 1] < _ONE_TASK:
        return np.arange(2, dtype=np.int64), 0.0
    return one, 0.0


def _cut_tree(distances_NN: Doubles, k: int) -> Labels:
    if len(distances_NN) == 1:
        return np.zeros(1, np.int64)
    hierarchy = _scipy_hierarchy()
    condensed = distances_NN[np.triu_indices(len(distances_NN), 1)]
    tree = hierarchy.linkage(condensed, method="average")
    raw = hierarchy.cut_tree(tree, n_clusters=k).ravel()
    _, first, back = np.unique(raw, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[back], np.int64)


def _described(
    clients: Sequence[str],
    similar_NN: Doubles,
    labels_N: Labels,
    ids: Sequence[str],
    width: float,
    temperature: float,
    *,
    absent: Mapping[str, str],
    next_id: int,
) -> Clustering:
    clusters = []
    for j, name in enumerate(ids):
        inside = np.flatnonzero(labels_N == j)
        pairs = similar_NN[np.ix_(inside, inside)][np.triu_indices(len(inside), 1)]
        clusters.append(
            Cluster(
                id=name,
                members=tuple(clients[int(i)] for i in inside),
                cohesion=float(pairs.mean()) if pairs.size else 1.0,
            )
        )
    return Clustering(
        clusters=tuple(sorted(clusters, key=lambda c: (len(c.id), c.id))),
        silhouette=width,
        memberships=_memberships(clients, similar_NN, labels_N, ids, temperature),
        absent=dict(absent),
        next_id=next_id,
    )


def _absent(previous: Clustering | None, clients: Sequence[str]) -> dict[str, str]:
    old = previous.all_members() if previous else {}
    return {c: i for i, members in old.items() for c in sorted(members - set(clients))}


def _memberships(
    clients: Sequence[str],
    similar_NN: Doubles,
    labels_N: Labels,
    ids: Sequence[str],
    temperature: float,
) -> Mapping[str, Mapping[str, float]]:
    """Softmax over the mean similarity to each cluster's other members."""
    if temperature <= 0.0:
        raise BadConfig("the temperature of memberships must be above 0", param="temperature")
    member_NK = (labels_N[:, None] == np.arange(len(ids))[None, :]).astype(np.float64)
    others_NK = member_NK.sum(axis=0)[None, :] - member_NK
    sums_NK = similar_NN @ member_NK - member_NK  # without a client's similarity to itself
    means_NK = np.where(others_NK > 0.0, sums_NK / np.maximum(others_NK, 1.0), 1.0)
    shares_NK = np.exp((means_NK - means_NK.max(axis=1, keepdims=True)) / temperature)
    shares_NK /= shares_NK.sum(axis=1, keepdims=True)
    return {
        c: {i: float(x) for i, x in zip(ids, row, strict=True)}
        for c, row in zip(clients, shares_NK, strict=True)
    }


def _assignment(cost: Doubles) -> tuple[Labels, Labels]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise _no_scipy() from error
    rows, columns = linear_sum_assignment(cost)
    return rows, columns


def _scipy_hierarchy() -> Any:
    try:
        from scipy.cluster import hierarchy
    except ImportError as error:
        raise _no_scipy() from error
    return hierarchy


def _no_scipy() -> Missing:
    return Missing('grouping devices by task needs scipy: pip install "floe[fed]"')
