"""Flower's Grid as the transport of rounds: names for nodes, deadlines, devices that come back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floe.federated.rounds import Arrival
from floe.flower.messages import bytes_in, hello_message, name_in, task_message

POLL_S = 0.2
GREET_S = 1.0
"""So often new nodes are looked for while answers are awaited."""
GATHER_S = 10.0
LATE = 256
"""So many unanswered questions of earlier rounds are still listened for."""


class GridTransport:
    """Asks SuperNodes by the names they give themselves; a name proves nothing, a seal does.

    A device that was restarted in the middle of a round is asked again.
    """

    def __init__(
        self, grid: Any, *, least: int, all_of: int, wait_s: float, gather_s: float = GATHER_S
    ) -> None:
        """`devices` waits up to `wait_s` for the `least` that a round needs, and then up to
        `gather_s` for `all_of` them."""
        self._grid = grid
        self._least, self._all_of = least, all_of
        self._wait_s, self._gather_s = wait_s, gather_s
        self._lives: dict[int, str] = {}
        self._greeted: dict[str, int] = {}
        self._node_of: dict[str, int] = {}
        self._late: dict[str, str] = {}

    def devices(self) -> Sequence[str]:
        """The names of the nodes that are there now."""
        until_s = time.monotonic() + self._wait_s
        enough = False
        while True:
            self._greet()
            names = sorted(self._there())
            if len(names) >= self._least and not enough:
                enough, until_s = True, min(until_s, time.monotonic() + self._gather_s)
            if len(names) >= self._all_of or time.monotonic() >= until_s:
                return names
            time.sleep(POLL_S)

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        """Answers as they come; whoever is silent at the deadline is reported as that."""
        until_s = time.monotonic() + deadline_s
        asked: dict[str, str] = {}
        waiting, unasked, greet_s = set(tasks), set(tasks), 0.0
        while waiting and time.monotonic() < until_s:
            if time.monotonic() >= greet_s:  # also for who comes late, or comes back
                heard = self._greet()
                ready = (unasked & self._there()) | (heard & waiting)
                left_s = until_s - time.monotonic()
                sent = self._ask({n: tasks[n] for n in sorted(ready)}, left_s)
                asked |= sent
                unasked -= set(sent.values())
                greet_s = time.monotonic() + GREET_S
            for reply in self._pull([*asked, *self._late]):
                message = reply.metadata.reply_to_message_id
                name = asked.pop(message, "") or self._late.pop(message, "")
                waiting.discard(name)
                yield _arrival(name, reply)
            if waiting:
                time.sleep(POLL_S)
        for name in sorted(waiting):
            yield Arrival(client=name, error="not_there" if name in unasked else "deadline")
        self._late = dict([*self._late.items(), *asked.items()][-LATE:])

    def _there(self) -> set[str]:
        """The names of the nodes that are there."""
        return {n for n, node in self._node_of.items() if node in self._lives}

    def _ask(self, tasks: Mapping[str, bytes], ttl_s: float) -> dict[str, str]:
        """Message id -> name of those whose question is on its way."""
        names = [name for name in tasks if name in self._node_of]
        messages = [
            task_message(tasks[n], node=self._node_of[n], group="round", ttl_s=max(1.0, ttl_s))
            for n in names
        ]
        ids = self._grid.push_messages(messages) if messages else []
        return {i: name for i, name in zip(ids, names, strict=True) if i}

    def _pull(self, ids: Sequence[str]) -> list[Any]:
        return list(self._grid.pull_messages(ids)) if ids else []

    def _greet(self) -> set[str]:
        """Ask new nodes for their names; the names that were heard since the last time."""
        nodes = {n.node_id: n for n in self._grid.get_nodes()}
        lives = {i: f"{i} {n.last_activated_at}" for i, n in nodes.items()}
        new = [node for node, life in lives.items() if self._lives.get(node) != life]
        self._lives = lives
        heard = {nodes[node].name for node in new if nodes[node].name}  # registered under a name
        self._node_of |= {nodes[node].name: node for node in new if nodes[node].name}
        new = [node for node in new if not nodes[node].name]
        if new:
            messages = [hello_message(node=node, ttl_s=max(30.0, self._wait_s)) for node in new]
            ids = self._grid.push_messages(messages)
            self._greeted |= {i: n for i, n in zip(ids, new, strict=True) if i}
        self._greeted = {i: n for i, n in self._greeted.items() if n in lives}
        for reply in self._pull(list(self._greeted)):
            node = self._greeted.pop(reply.metadata.reply_to_message_id, None)
            name = name_in(reply)
            if name and node is not None:
                self._node_of[name] = node
                heard.add(name)
        return heard


def _arrival(name: str, reply: Any) -> Arrival:
    if reply.has_error():
        return Arrival(client=name, error=f"flower_{reply.error.code}")
    return Arrival(client=name, data=bytes_in(reply))
