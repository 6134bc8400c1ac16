"""An adapter's life: rounds in which devices train and a server adds up what they learned.

`local_update` is the device's half of a round, `close_round` the server's; `take_part` and
`run_rounds` carry them over bytes, whatever brings the bytes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floe.core.errors import BadRound, BadUpdate, FloeError
from floe.federated.base import Aggregate, Aggregator, Meeting, Shield, Trainer, Transport
from floe.federated.desk import Desk, Rules, Spent
from floe.federated.identity import Sign, seal
from floe.federated.products import state_cut
from floe.federated.report import ClusterLine, RoundReport
from floe.federated.rounds import (
    Arrival,
    Opened,
    Task,
    pack_failure,
    pack_task,
    seed_of,
    select,
    unpack_task,
)
from floe.federated.state import Codec, Memory, Outbox, StateFolder
from floe.federated.update import AdapterState, Update

ATTEMPTS = 3
"""A round that is void so often in a row ends the run."""


# The device's half.


@dataclass(frozen=True, kw_only=True)
class DeviceParts:
    """What a device needs. `spend` raises PrivacySpent before anything is trained, and returns what
    it says of the budget as metrics. `seed` None = new randomness for each round, as noise needs
    it. `terms` is a text of the settings: with others, an earlier answer does not count."""

    name: str
    base_digest: str
    trainer: Trainer
    rank: int
    codec: Codec
    sign: Sign
    outbox: Outbox
    shields: Sequence[Shield] = ()
    spend: Callable[[Task], Mapping[str, float]] = lambda _task: {}
    seed: int | None = None
    terms: str = ""


def local_update(
    start: AdapterState | None, parts: DeviceParts, *, task: Task, seed: int
) -> Update:
    """Device half of a round. Unshielded weights never leave this function.

    Raises:
        PrivacySpent: the device's own budget does not cover the round; nothing was trained.
    """
    about = dict(parts.spend(task))
    if start is not None and start.rank > parts.rank:  # the trainer cuts; what that costs is told
        about["start_cut_error"] = state_cut(start, parts.rank)[1]
    trained = parts.trainer.fit(start, rank=parts.rank, seed=seed, round_number=task.round_number)
    update = replace(
        trained,
        client=parts.name,
        round_number=task.round_number,
        cluster=task.cluster,
        started_from=task.started_from,
        metrics={**trained.metrics, **about},
    )
    for shield in parts.shields:
        update = shield.on_device(start, update, seed=seed_of(seed, shield.name))
    return update


def take_part(data: bytes, parts: DeviceParts) -> bytes:
    """A task's bytes answered: a sealed update or verdict, or why there is none.

    Asked again for the same round, after a void attempt too, the device sends again what it sent,
    sealed anew: it neither trains nor spends.
    """
    try:
        task = unpack_task(data)
        question = _question(task, parts)
        payload = parts.outbox.get(question)
        if payload is None:
            payload = _payload(task, parts)
            if task.kind == "train":  # a verdict costs nothing to give again
                parts.outbox.put(question, payload)
        return seal(
            payload,
            client=parts.name,
            round_number=task.round_number,
            nonce=task.nonce,
            sign=parts.sign,
        )
    except FloeError as error:
        return pack_failure(error)


def _question(task: Task, parts: DeviceParts) -> str:
    """A digest of all that decides the answer: each attempt has a nonce of its own."""
    asked = pack_task(replace(task, nonce=""))
    own = json.dumps([parts.name, parts.rank, parts.terms]).encode()
    return hashlib.sha256(own + asked).hexdigest()


def begin(task: Task, parts: DeviceParts) -> AdapterState | None:
    """The adapter that a task starts from (None = the base). Raises BadUpdate: another base."""
    if task.base_digest != parts.base_digest:
        raise BadUpdate(
            "this device holds another base model than the server: set federated.base alike",
            reason="wrong_base",
        )
    return parts.codec.unpack_state(task.adapter)


def trained(start: AdapterState | None, task: Task, parts: DeviceParts) -> Update:
    """`local_update` with the seed that the device draws for the round."""
    seed = secrets.randbits(62) if parts.seed is None else parts.seed
    return local_update(start, parts, task=task, seed=seed_of(seed, parts.name, task.round_number))


def _payload(task: Task, parts: DeviceParts) -> bytes:
    start = begin(task, parts)
    if task.kind == "judge":
        return _judge(start, task, parts)
    return parts.codec.pack(trained(start, task, parts))


def _judge(current: AdapterState | None, task: Task, parts: DeviceParts) -> bytes:
    """One bit about a candidate: whether it is worse for this device by more than the margin."""
    candidate = parts.trainer.loss(parts.codec.unpack_state(task.candidate))
    worse = not candidate <= parts.trainer.loss(current) + task.margin  # NaN is worse
    return b"worse" if worse else b"fine"


# The server's half.


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Devices by cluster, and what the grouping wants to be told next time (JSON)."""

    clusters: Mapping[str, tuple[str, ...]]
    memory: Mapping[str, Any] = field(default_factory=dict)


Group = Callable[[Collection[Update], Memory], Grouped]
"""(updates that may be read again and again, what was before) -> clusters with stable names."""


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What is to be added up: a cluster's updates in a round, and the adapter it had before."""

    round_number: int
    n_updates: int
    before: AdapterState | None


@dataclass(frozen=True, kw_only=True)
class ServerParts:
    """What a server needs. `weigh` is a good update's weight, above 0. `afford` raises PrivacySpent
    for a round (its number) that would pass the target, before anybody trains; `spend` accounts one
    with so many updates accepted, once however often it is told, and raises BadRound with fewer
    than its noise was made for. A cluster of fewer than `min_members` is not added up. `seed` None
    = new randomness each time, as noise needs it."""

    state: StateFolder
    rules: Rules
    group: Group
    aggregator: Callable[[Addition], Aggregator]
    weigh: Callable[[Update], float]
    rank: int
    shields: Sequence[Shield] = ()
    afford: Callable[[int], None] = lambda _round_number: None
    spend: Callable[[Opened, int], Spent] = lambda _opened, _accepted: Spent()
    fraction: float = 1.0
    min_clients: int = 2
    min_members: int = 1
    deadline_s: float = 900.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A round's result: a total for each cluster that changed, a line for each, what it cost."""

    totals: Mapping[str, Aggregate]
    grouped: Grouped
    lines: tuple[ClusterLine, ...]
    spent: Spent
    timings_s: Mapping[str, float]


def close_round(arrivals: Iterable[Arrival], desk: Desk, parts: ServerParts) -> Closed:
    """Server half of a round: check what arrives, group it, add up, shield in reverse, account.

    One bad update disturbs nobody: it is refused by name and the rest goes on.

    Raises:
        BadRound: too few good updates, or no cluster that could be added up; nothing changes.
    """
    began_s = time.monotonic()
    for arrival in arrivals:
        desk.receive(arrival)
    desk.refuse_outliers()
    received_s = time.monotonic()
    desk.require(parts.min_clients)
    spent = parts.spend(desk.opened, len(desk.kept))
    grouped = parts.group(desk.kept, desk.memory)
    totals: dict[str, Aggregate] = {}
    lines = []
    for cluster, members in grouped.clusters.items():
        total = _added_up(cluster, members, desk, parts)
        if isinstance(total, Aggregate):
            totals[cluster] = total
        lines.append(_line(cluster, members, total, desk.memory))
    if not totals:
        raise BadRound("; ".join(f"{line.cluster}: {line.why}" for line in lines))
    timings_s = {"receive": received_s - began_s, "add_up": time.monotonic() - received_s}
    return Closed(
        totals=totals, grouped=grouped, lines=tuple(lines), spent=spent, timings_s=timings_s
    )


def _added_up(
    cluster: str, members: Sequence[str], desk: Desk, parts: ServerParts
) -> Aggregate | BadRound:
    """The members' updates as one adapter fit to be published, or why there is none."""
    if len(members) < parts.min_members:
        return BadRound(f"{len(members)} of at least {parts.min_members} devices")
    addition = Addition(
        round_number=desk.opened.round_number,
        n_updates=len(members),
        before=parts.rules.adapter(desk.memory.adapters.get(cluster, "")),
    )
    aggregator, added = parts.aggregator(addition), []
    for client in members:
        update = desk.kept.get(client)
        try:
            aggregator.add(update, weight=parts.weigh(update))
        except BadUpdate as error:
            desk.refuse(client, error.reason)
        else:
            added.append(client)
    try:
        total = aggregator.close(rank=parts.rank)
    except BadRound as error:
        return error
    seed = secrets.randbits(62) if parts.seed is None else parts.seed
    for shield in reversed(parts.shields):
        seed = seed_of(seed, desk.opened.round_number, cluster, shield.name)
        total = shield.on_server(total, added, seed=seed)
    return total


def _line(
    cluster: str, members: Sequence[str], total: Aggregate | BadRound, memory: Memory
) -> ClusterLine:
    if isinstance(total, BadRound):
        return ClusterLine(
            cluster=cluster,
            clients=tuple(members),
            changed=False,
            adapter=memory.adapters.get(cluster, ""),
            why=total.message,
        )
    return ClusterLine(
        cluster=cluster,
        clients=tuple(members),
        changed=True,
        n_examples=total.n_examples,
        rank=total.state.rank,
        truncation_error=total.truncation_error,
        compression_error=total.compression_error,
    )


# Rounds over any transport.


Tell = Callable[[RoundReport], None]


def run_rounds(
    transport: Transport, parts: ServerParts, *, rounds: int, tell: Tell = lambda _report: None
) -> Memory:
    """Hold rounds until `rounds` of them counted in all; go on where an earlier server stopped.

    Hold `parts.state.locked()` around it.

    Raises:
        BadRound: a round was void three times in a row; the last good adapters stay.
        PrivacySpent: another round would pass the target; nobody was asked to train for it.
    """
    state, void = parts.state, 0
    memory = state.read(parts.rules.expected.base_digest)
    while memory.next_round <= rounds:
        opened = memory.opened or open_round(transport, memory, parts)
        memory = replace(memory, opened=opened)
        state.write(memory)
        memory, report = _round(transport, opened, memory, parts)
        tell(report)
        void = void + 1 if report.void else 0
        if void >= ATTEMPTS:
            raise BadRound(report.void)
    return memory


def open_round(transport: Meeting, memory: Memory, parts: ServerParts) -> Opened:
    """A new round: who of those that are there is asked. Raises PrivacySpent past the target."""
    number = memory.next_round
    parts.afford(number)
    attempt = 1 + sum(past.round_number == number for past in memory.past)
    seed = secrets.randbits(62) if parts.seed is None else seed_of(parts.seed, number, attempt)
    names = [name for name in transport.devices() if name in parts.rules.devices]
    selected = select(names, fraction=parts.fraction, at_least=parts.min_clients, seed=seed)
    nonce = secrets.token_hex(16) if parts.seed is None else f"{seed:016x}"
    return Opened(
        round_number=number,
        nonce=nonce,
        selected=selected,
        clusters={name: _cluster_of(name, memory) for name in selected},
        attempt=attempt,
    )


def _cluster_of(name: str, memory: Memory) -> str:
    """Where a device begins: with its own cluster's adapter, or with the only one there is."""
    cluster = memory.clusters.get(name, "")
    if cluster in memory.adapters:
        return cluster
    return next(iter(memory.adapters)) if len(memory.adapters) == 1 else ""


def _round(
    transport: Transport, opened: Opened, memory: Memory, parts: ServerParts
) -> tuple[Memory, RoundReport]:
    """One round held, and remembered once it is over."""
    state = parts.state
    desk = Desk(opened, memory, state.kept(opened), parts.rules)
    tasks = {
        name: state.training_task(opened, memory, cluster=opened.clusters.get(name, ""))
        for name in opened.selected
        if name not in desk.kept.norms
    }
    bytes_down = sum(map(len, tasks.values()))
    arrivals = transport.exchange(tasks, deadline_s=parts.deadline_s) if tasks else iter(())
    try:
        closed = close_round(arrivals, desk, parts)
    except BadRound as error:
        report = desk.report(void=error.message, bytes_down=bytes_down)
        memory = memory.after(opened, (), advanced=False)
    else:
        digests = {c: state.put_adapter(total.state) for c, total in closed.totals.items()}
        report = desk.report(
            [replace(x, adapter=digests.get(x.cluster, x.adapter)) for x in closed.lines],
            spent=closed.spent,
            timings_s=closed.timings_s,
            bytes_down=bytes_down,
        )
        memory = _learned(memory.after(opened, report.accepted, advanced=True), closed, digests)
    state.put_report(report.to_json())
    state.write(memory)
    state.clear_rounds()
    return memory, report


def _learned(memory: Memory, closed: Closed, digests: Mapping[str, str]) -> Memory:
    """Each cluster's new adapter and everyone's cluster; who was not in the round keeps its own."""
    of = {m: cluster for cluster, members in closed.grouped.clusters.items() for m in members}
    return replace(
        memory,
        adapters={**memory.adapters, **digests},
        clusters={**memory.clusters, **of},
        groups=dict(closed.grouped.memory),
    )
