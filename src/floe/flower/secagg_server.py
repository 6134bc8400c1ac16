"""The server's side of a secure sum: Flower's SecAgg+ workflow over the grid, one sum a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey

from floe.assemble.secure_rounds import Vouch
from floe.core.errors import BadRound
from floe.federated.report import Refusal
from floe.federated.rounds import failure_in
from floe.federated.secure_sum import SecureSum, SecureTerms, Vector
from floe.flower.messages import bytes_in
from floe.flower.secagg import CONFIGS, MAX_WEIGHT, SEAL, stage_of
from floe.flower.transport import POLL_S, GridTransport


class SecureGridTransport(GridTransport):
    """`GridTransport` that can also bring a sum alone."""

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
        """The sum of what arrives; `deadline_s` is that of each of the protocol's four steps."""
        there = self._there()
        names = {self._node_of[name]: name for name in tasks if name in there}
        channel = _Channel(self._grid, names, vouch=vouch, deadline_s=deadline_s)
        for name in sorted(set(tasks) - there):
            channel.failed[name] = "not_there"
        result = _Result({node: tasks[name] for node, name in names.items()})
        why = ""
        if len(names) < terms.least or len(names) > terms.most:
            why = f"{len(names)} devices are there, and a sum is of {terms.least} to {terms.most}"
        else:
            flow = _Flow(terms, len(names), lambda n: before_opening([names[i] for i in sorted(n)]))
            try:
                flow(channel, _context(round_number, result))
            except BadRound as error:
                why = error.message
            except ValueError as error:  # shares that do not fit each other
                why = f"the masks could not be taken off: {error}"
            if result.mean is None and not why:
                why = f"fewer than {terms.threshold(len(names))} of {len(names)} devices stayed"
        return channel.sum_of(result, why)


class _Channel:
    """What the workflow takes for the grid: it counts bytes, and a refused answer is an absent one,
    whose masks the workflow takes off the others."""

    def __init__(
        self, grid: Any, names: Mapping[int, str], *, vouch: Vouch, deadline_s: float
    ) -> None:
        self._grid, self._names = grid, names
        self._vouch, self._deadline_s = vouch, deadline_s
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.bytes_up = self.bytes_down = 0

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """The answers that came in time and hold."""
        del timeout
        until_s, sent = time.monotonic() + self._deadline_s, list(messages)
        self.bytes_down += sum(_size(m) for m in sent)
        nodes = [m.metadata.dst_node_id for m in sent]
        ids = self._grid.push_messages(sent)
        waiting = {i: node for i, node in zip(ids, nodes, strict=True) if i}
        stage = stage_of(sent[0]) if sent else ""
        for node in set(nodes) - set(waiting.values()):
            self.failed[self._names[node]] = "not_there"
        replies = []
        while waiting and time.monotonic() < until_s:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if self._holds(reply, self._names[node], stage):
                    replies.append(reply)
            if waiting:
                time.sleep(POLL_S)
        for node in waiting.values():
            self.failed[self._names[node]] = "deadline"
        return replies

    def _holds(self, reply: Any, name: str, stage: str) -> bool:
        """Whether an answer counts; why not is noted."""
        if reply.has_error():
            self.failed[name] = f"flower_{reply.error.code}"
            return False
        self.bytes_up += _size(reply)
        records = reply.content.config_records
        word = failure_in(bytes_in(reply))
        if word:
            self.failed[name] = word
        elif CONFIGS not in records:
            self.refused[name] = "malformed"
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            seal = records.get("fitres.metrics", {}).get(SEAL, b"")
            why = self._vouch(name, seal if isinstance(seal, bytes) else b"")
            if why:
                self.refused[name] = why
        return name not in self.failed and name not in self.refused

    def sum_of(self, result: _Result, why: str) -> SecureSum:
        """What the round brought."""
        clients = tuple(sorted(self._names[node] for node in result.nodes))
        failed = {n: w for n, w in self.failed.items() if n not in clients}
        return SecureSum(
            mean=None if why else result.mean,
            why=why,
            clients=clients,
            refused=tuple(Refusal(client=n, reason=w) for n, w in sorted(self.refused.items())),
            failed=tuple(Refusal(client=n, reason=w) for n, w in sorted(failed.items())),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
        )


class _Result:
    """What the workflow takes for strategy and client manager: who is asked what, and the mean."""

    def __init__(self, tasks: Mapping[int, bytes]) -> None:
        self._tasks = tasks
        self.nodes: tuple[int, ...] = ()
        self.mean: Vector | None = None

    def num_available(self) -> int:
        """How many can be asked."""
        return len(self._tasks)

    def configure_fit(self, *_: Any) -> list[tuple[_Proxy, FitIns]]:
        """Each device and its task."""
        return [
            (_Proxy(node), FitIns(Parameters(tensors=[task], tensor_type="floe"), {}))
            for node, task in self._tasks.items()
        ]

    def aggregate_fit(self, _round: int, results: Sequence[Any], _failures: Any) -> Any:
        """The same mean is in every result."""
        self.nodes = tuple(proxy.node_id for proxy, _ in results)
        (vector_N,) = parameters_to_ndarrays(results[0][1].parameters)
        self.mean = vector_N.astype(np.float64).ravel()
        return None, {}


class _Proxy:
    """A node in the older words."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class _Flow(SecAggPlusWorkflow):  # type: ignore[misc]
    """Everybody shares keys with everybody; who left before masking is nobody's neighbour."""

    def __init__(
        self, terms: SecureTerms, n: int, before_opening: Callable[[Iterable[int]], None]
    ) -> None:
        super().__init__(
            num_shares=n,
            reconstruction_threshold=0.5,
            max_weight=MAX_WEIGHT,
            clipping_range=terms.fixed.clipping_range,
            quantization_range=terms.fixed.levels,
            modulus_range=terms.fixed.modulus,
        )
        # With a whole number Flower wants fewer than shares: then three devices open nothing.
        self.reconstruction_threshold = terms.threshold(n)
        self._before_opening = before_opening

    def share_keys_stage(self, grid: Any, context: Any, state: Any) -> bool:
        """Flower's, then without those who left: it would ask for shares of keys they never gave,
        and take masks off that nobody put on."""
        goes_on = bool(super().share_keys_stage(grid, context, state))
        here = state.active_node_ids
        state.sampled_node_ids = set(here)
        state.nid_to_neighbours = {n: state.nid_to_neighbours[n] & here for n in here}
        return goes_on

    def unmask_stage(self, grid: Any, context: Any, state: Any) -> bool:
        """Flower's, once the round is accounted for."""
        self._before_opening(state.active_node_ids)
        return bool(super().unmask_stage(grid, context, state))


def _context(round_number: int, result: _Result) -> Any:
    """What the workflow reads of a run."""
    plain = Context(
        run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}
    )  # fmt: skip
    plain.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {WorkflowKey.CURRENT_ROUND: round_number}
    )
    plain.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    strategy: Any = result
    return LegacyContext(context=plain, strategy=strategy, client_manager=strategy)


def _size(message: Any) -> int:
    """Bytes of the values in a message, without their names and frames."""
    content = message.content
    arrays = sum(len(a.data) for r in content.array_records.values() for a in r.values())
    values = (v for r in content.config_records.values() for v in r.values())
    return arrays + sum(_value_bytes(v) for v in values)


def _value_bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    return len(value) if isinstance(value, bytes | str) else 8
