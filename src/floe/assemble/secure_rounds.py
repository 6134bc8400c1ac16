"""Rounds whose server sees the sum of the updates and no single one: both halves.

A server's check of an update is the device's here, a round that was interrupted is held anew with
new noise, and all devices are one cluster, for nothing can be told apart.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from floe.core.errors import BadRound, BadUpdate
from floe.federated.base import Aggregate, Meeting
from floe.federated.checks import check_sender
from floe.federated.desk import Spent
from floe.federated.identity import seal, unseal
from floe.federated.report import ClusterLine, RoundReport
from floe.federated.rounds import Opened, seed_of, unpack_task
from floe.federated.secure_sum import SecureSum, SecureTerms, Vector, change_vector, moved
from floe.federated.state import Memory
from floe.learn import (
    ATTEMPTS,
    DeviceParts,
    ServerParts,
    Tell,
    begin,
    open_round,
    trained,
)

CLUSTER = "all"
_PAYLOAD = b"in a secure sum"
Vouch = Callable[[str, bytes], str]
"""(device, its seal) -> "" where it may take part, else why not in a word."""


class SumTransport(Meeting, Protocol):
    """Brings tasks to devices and the sum of their answers back."""

    def sum_up(
        self,
        tasks: Mapping[str, bytes],
        terms: SecureTerms,
        *,
        round_number: int,
        deadline_s: float,
        vouch: Vouch,
        before_opening: Callable[[Sequence[str]], None],
    ) -> SecureSum:
        """Ask each device and add up. `before_opening` hears whose updates are in the sum, before
        anybody can read it, and may raise BadRound."""


# The device's half.


def secure_change(data: bytes, parts: DeviceParts, terms: SecureTerms) -> tuple[Vector, bytes]:
    """What a device puts into the sum for a task's bytes, unmasked, and its seal in clear.

    A question is answered once: two sums with one update, or one share of noise, tell more.

    Raises:
        BadUpdate, BadRequest, PrivacySpent: nothing may leave the device.
    """
    task = unpack_task(data)
    question = hashlib.sha256(data).hexdigest()
    if task.kind != "train":
        raise BadUpdate("a verdict cannot be put into a secure sum", reason="wrong_task")
    if parts.outbox.get(question) is not None:
        raise BadUpdate("this round's sum already holds this device's update", reason="replayed")
    start = begin(task, parts)
    vector_N = change_vector(start, trained(start, task, parts).state, terms)
    parts.outbox.put(question, b"")
    sealed = seal(
        _PAYLOAD,
        client=parts.name,
        round_number=task.round_number,
        nonce=task.nonce,
        sign=parts.sign,
    )
    return vector_N, sealed


# The server's half.


def run_secure_rounds(
    transport: SumTransport,
    parts: ServerParts,
    terms: SecureTerms,
    *,
    rounds: int,
    tell: Tell = lambda _report: None,
) -> Memory:
    """As `learn.run_rounds`, over sums.

    Raises:
        BadRound: a round was void three times in a row; the last good adapter stays.
        PrivacySpent: another round would pass the target; nobody was asked to train for it.
    """
    state, void = parts.state, 0
    memory = state.read(parts.rules.expected.base_digest)
    if memory.opened:  # its sum may have been read: what comes next is another round
        memory = memory.after(memory.opened, (), advanced=False)
    while memory.next_round <= rounds:
        opened = open_round(transport, memory, parts)
        state.write(replace(memory, opened=opened))
        memory, report = _round(transport, opened, memory, parts, terms)
        state.put_report(report.to_json())
        state.write(memory)
        tell(report)
        void = void + 1 if report.void else 0
        if void >= ATTEMPTS:
            raise BadRound(report.void)
    return memory


def _round(
    transport: SumTransport,
    opened: Opened,
    memory: Memory,
    parts: ServerParts,
    terms: SecureTerms,
) -> tuple[Memory, RoundReport]:
    began_s, spent = time.monotonic(), [Spent()]

    def before_opening(clients: Sequence[str]) -> None:
        if len(clients) < terms.least:
            raise BadRound(f"{len(clients)} of at least {terms.least} updates are in it")
        spent.append(parts.spend(opened, len(clients)))

    task = parts.state.training_task(opened, memory, cluster=CLUSTER)
    total = transport.sum_up(
        dict.fromkeys(opened.selected, task),
        terms,
        round_number=opened.round_number,
        deadline_s=parts.deadline_s,
        vouch=_vouch(opened, memory, parts),
        before_opening=before_opening,
    )
    report = RoundReport(
        round_number=opened.round_number,
        attempt=opened.attempt,
        selected=opened.selected,
        returned=tuple(sorted([*total.clients, *(r.client for r in total.refused)])),
        accepted=(),
        refused=total.refused,
        failed=total.failed,
        epsilon=spent[-1].epsilon,
        epsilon_of=spent[-1].terms,
        bytes_up=total.bytes_up,
        bytes_down=total.bytes_down,
        secure_sum=True,
        timings_s={"round": time.monotonic() - began_s},
    )
    try:
        learned = _added_up(total, opened, memory, parts, terms)
    except BadRound as error:
        return memory.after(opened, (), advanced=False), replace(report, void=_void(error, report))
    digest = parts.state.put_adapter(learned.state)
    line = ClusterLine(
        cluster=CLUSTER,
        clients=total.clients,
        changed=True,
        n_examples=learned.n_examples,
        rank=learned.state.rank,
        adapter=digest,
    )
    after = replace(
        memory.after(opened, total.clients, advanced=True),
        adapters={CLUSTER: digest},
        clusters={**memory.clusters, **dict.fromkeys(total.clients, CLUSTER)},
    )
    return after, replace(report, accepted=total.clients, clusters=(line,))


def _added_up(
    total: SecureSum, opened: Opened, memory: Memory, parts: ServerParts, terms: SecureTerms
) -> Aggregate:
    """The adapter after the mean change. Raises BadRound where there is none."""
    if total.mean is None:
        raise BadRound(total.why)
    expected = parts.rules.expected
    state = moved(
        parts.state.adapter(memory.adapters.get(CLUSTER, "")),
        total.mean,
        base_digest=expected.base_digest,
        shapes=expected.shapes,
        terms=terms,
    )
    n = len(total.clients)
    learned = Aggregate(state=state, n_updates=n, n_examples=n)  # each counts as one
    for shield in reversed(parts.shields):
        seed = seed_of(opened.nonce, shield.name)
        learned = shield.on_server(learned, total.clients, seed=seed)
    return learned


def _void(error: BadRound, report: RoundReport) -> str:
    why = ", ".join(f"{r.client}: {r.reason}" for r in (*report.refused, *report.failed))
    return f"round {report.round_number} has no sum: {error.message}; the model stays as it was" + (
        f" ({why})" if why else ""
    )


def _vouch(opened: Opened, memory: Memory, parts: ServerParts) -> Vouch:
    taken: set[str] = set()

    def vouch(name: str, data: bytes) -> str:
        rules = parts.rules
        try:
            sealed = unseal(data)
            check_sender(
                sealed,
                opened,
                devices=rules.devices,
                verify=rules.verify,
                past=memory.past,
                taken=taken,
            )
        except BadUpdate as error:
            return error.reason
        if sealed.client != name:
            return "impostor"
        taken.add(name)
        return ""

    return vouch
