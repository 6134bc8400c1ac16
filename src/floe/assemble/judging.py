"""The gate over any transport: each member of a cluster judges its new adapter by one bit.

A verdict is sealed like an update, so that neither a stranger nor a copy counts. What is kept of a
cluster are counts, and nothing where too few answered.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from floe.core.errors import BadRound, BadUpdate
from floe.core.files import atomic_write
from floe.core.sections import FederatedConfig
from floe.federated.base import Transport
from floe.federated.checks import check_sender
from floe.federated.identity import unseal
from floe.federated.publish_gate import GateResult, gate
from floe.federated.rounds import Arrival, Opened, Task, failure_in, pack_task
from floe.federated.state import Memory
from floe.learn import ServerParts

GATES = "gates.json"
_VERDICTS = {b"worse": True, b"fine": False}


def judge(
    transport: Transport, parts: ServerParts, memory: Memory, *, margin: float, min_members: int
) -> dict[str, GateResult]:
    """Every cluster's adapter against the plain base, by those members that can be asked now.

    The result is kept beside the server's state (`read_gates`). Cluster -> what the gate says.
    """
    there = set(transport.devices()) & parts.rules.devices.keys()
    asked = {d: c for d, c in memory.clusters.items() if c in memory.adapters and d in there}
    opened = Opened(
        round_number=memory.next_round,
        nonce=secrets.token_hex(16),
        selected=tuple(sorted(asked)),
        clusters=asked,
    )
    tasks = {
        device: pack_task(
            Task(
                kind="judge",
                round_number=opened.round_number,
                nonce=opened.nonce,
                base_digest=memory.base_digest,
                cluster=cluster,
                margin=margin,
                candidate=parts.state.adapter_bytes(memory.adapters[cluster]),
            )
        )
        for device, cluster in sorted(asked.items())
    }
    verdicts: dict[str, bool] = {}
    for arrival in transport.exchange(tasks, deadline_s=parts.deadline_s) if tasks else ():
        _take(arrival, verdicts, opened, parts)
    results = {}
    for cluster in memory.adapters:
        members = [device for device, c in memory.clusters.items() if c == cluster]
        given = {device: verdicts.get(device) for device in members}
        results[cluster] = gate(given, min_members=min_members)
    _write(parts.state.folder, memory, results)
    return results


def judge_run(
    transport: Transport, parts: ServerParts, memory: Memory, fed: FederatedConfig
) -> dict[str, GateResult]:
    """`judge` as the federation's table says."""
    least = 1 if fed.clusters == 1 else fed.min_members
    return judge(transport, parts, memory, margin=fed.gate_margin, min_members=least)


def read_gates(folder: Path, adapters: Mapping[str, str]) -> dict[str, GateResult]:
    """What was judged of exactly these adapters (cluster -> digest); others are left out.

    Raises:
        BadRound: the file is damaged.
    """
    path = folder / GATES
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_bytes())
        return {
            cluster: GateResult(**entry["result"])
            for cluster, entry in data.items()
            if entry["adapter"] == adapters.get(cluster)
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadRound(f"{path}, what members judged, is damaged. Remove it") from error


def _take(arrival: Arrival, verdicts: dict[str, bool], opened: Opened, parts: ServerParts) -> None:
    """Count a verdict; one that is damaged, forged or missing is no verdict."""
    if arrival.error or failure_in(arrival.data):
        return
    rules = parts.rules
    try:
        sealed = unseal(arrival.data)
        check_sender(sealed, opened, devices=rules.devices, verify=rules.verify, taken=verdicts)
    except BadUpdate:
        return
    if sealed.payload in _VERDICTS:
        verdicts[sealed.client] = _VERDICTS[sealed.payload]


def _write(folder: Path, memory: Memory, results: Mapping[str, GateResult]) -> None:
    data = {
        cluster: {"adapter": memory.adapters[cluster], "result": asdict(result)}
        for cluster, result in results.items()
    }
    with atomic_write(folder / GATES) as file:
        file.write(json.dumps(data, indent=1).encode())
