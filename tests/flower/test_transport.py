"""Flower's Grid as a transport: names, deadlines, errors, devices that come late or come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from floe.federated.rounds import Arrival
from floe.flower import transport
from floe.flower.messages import bytes_in, name_in, reply_with, reply_with_name
from floe.flower.transport import GridTransport

Answer = Callable[[bytes], bytes | None]


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for event in [e for e in self.events if e[0] <= self.now_s]:
            self.events.remove(event)
            event[1]()


@dataclass
class Node:
    node_id: int
    device: str
    answer: Answer
    name: str = ""
    last_activated_at: str = "1"
    late_s: float = 0.0


@dataclass
class FakeGrid:
    """Nodes that answer in this process; messages are Flower's own."""

    clock: Clock
    nodes: dict[int, Node] = field(default_factory=dict)
    replies: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def get_nodes(self) -> list[Node]:
        return list(self.nodes.values())

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for n, message in enumerate(messages):
            ident = f"m{len(self.asked)}-{n}"
            message.metadata.__dict__["_message_id"] = ident
            ids.append(ident)
            node = self.nodes[message.metadata.dst_node_id]
            self.asked.append((node.device, message.metadata.message_type))
            reply = self._reply(node, message)
            if reply is not None:
                self._later(node.late_s, ident, reply)
        return ids

    def _reply(self, node: Node, message: Any) -> Any:
        if message.metadata.message_type == "query":
            return reply_with_name(node.device, message)
        answer = node.answer(bytes_in(message))
        if answer == b"crash":
            return Message(Error(code=8, reason="crashed"), reply_to=message)
        return None if answer is None else reply_with(answer, message)

    def _later(self, seconds: float, ident: str, reply: Any) -> None:
        if seconds:
            event = (self.clock.now_s + seconds, lambda: self.replies.update({ident: reply}))
            self.clock.events.append(event)
        else:
            self.replies[ident] = reply

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self.replies.pop(i) for i in list(ids) if i in self.replies]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be made in a run alone."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(transport, "time", made)
    return made


def grid_of(clock: Clock, **answers: Answer) -> FakeGrid:
    grid = FakeGrid(clock)
    for n, (device, answer) in enumerate(answers.items(), start=1):
        grid.nodes[n] = Node(node_id=n, device=device, answer=answer)
    return grid


def echo(data: bytes) -> bytes:
    return b"re:" + data


def mute(data: bytes) -> None:
    return None


def over(grid: FakeGrid, *, least: int = 1, all_of: int = 2) -> GridTransport:
    return GridTransport(grid, least=least, all_of=all_of, wait_s=60.0)


def exchanged(on: GridTransport, *names: str, deadline_s: float = 30.0) -> list[Arrival]:
    return list(on.exchange({n: n.encode() for n in names}, deadline_s=deadline_s))


def brief(arrivals: list[Arrival]) -> list[tuple[str, bytes, str]]:
    return sorted((a.client, a.data, a.error) for a in arrivals)


def test_devices_are_known_by_the_names_they_give(clock: Clock) -> None:
    on = over(grid_of(clock, a=echo, b=echo))
    assert on.devices() == ["a", "b"]
    assert brief(exchanged(on, "a", "b")) == [("a", b"re:a", ""), ("b", b"re:b", "")]


def test_a_registered_name_needs_no_hello(clock: Clock) -> None:
    grid = grid_of(clock, a=echo)
    grid.nodes[1].name = "a"
    on = over(grid, all_of=1)
    assert on.devices() == ["a"]
    assert grid.asked == []


def test_the_wait_for_devices_ends(clock: Clock) -> None:
    assert over(grid_of(clock), least=1).devices() == []
    assert clock.now_s == pytest.approx(60.0, abs=0.5)
    start_s = clock.now_s
    assert over(grid_of(clock, a=echo), least=1, all_of=2).devices() == ["a"]
    assert clock.now_s - start_s == pytest.approx(10.0, abs=0.5)  # the rest had time to come


def test_a_silent_device_is_late_at_the_deadline_and_heard_later(clock: Clock) -> None:
    grid = grid_of(clock, a=echo, b=echo)
    on = over(grid)
    on.devices()
    grid.nodes[2].late_s = 35.0
    first = brief(exchanged(on, "a", "b"))
    assert first == [("a", b"re:a", ""), ("b", b"", "deadline")]
    assert clock.now_s == pytest.approx(30.0, abs=0.5)
    clock.sleep(10.0)
    grid.nodes[2].late_s = 0.0
    again = exchanged(on, "a", "b")
    assert brief(again) == [("a", b"re:a", ""), ("b", b"re:b", ""), ("b", b"re:b", "")]


def test_c31_a_crash_on_the_device_is_told(clock: Clock) -> None:
    on = over(grid_of(clock, a=lambda data: b"crash", b=echo))
    on.devices()
    assert brief(exchanged(on, "a", "b")) == [("a", b"", "flower_8"), ("b", b"re:b", "")]
    assert clock.now_s < 1.0


def test_a_device_that_is_away_is_asked_when_it_comes(clock: Clock) -> None:
    grid = grid_of(clock, a=echo)
    on = over(grid, all_of=1)
    on.devices()
    node = Node(node_id=9, device="b", answer=echo)
    clock.events.append((5.0, lambda: grid.nodes.update({9: node})))
    assert brief(exchanged(on, "a", "b")) == [("a", b"re:a", ""), ("b", b"re:b", "")]
    assert brief(exchanged(on, "z", deadline_s=3.0)) == [("z", b"", "not_there")]


@pytest.mark.parametrize("same_node", [True, False])
def test_c26_a_device_that_was_restarted_is_asked_again(clock: Clock, same_node: bool) -> None:
    grid = grid_of(clock, a=echo, b=mute)
    on = over(grid)
    on.devices()

    def restart() -> None:
        gone = grid.nodes.pop(2)
        node = gone.node_id if same_node else 7
        grid.nodes[node] = Node(node_id=node, device="b", answer=echo, last_activated_at="2")

    clock.events.append((4.0, restart))
    assert brief(exchanged(on, "a", "b")) == [("a", b"re:a", ""), ("b", b"re:b", "")]
    assert clock.now_s < 10.0


def test_foreign_messages_hold_none_of_our_bytes(clock: Clock) -> None:
    hello = reply_with_name("a", _message(clock))
    assert name_in(hello) == "a"
    assert bytes_in(hello) == b""
    assert name_in(reply_with(b"x", _message(clock))) == ""


def _message(clock: Clock) -> Any:
    from floe.flower.messages import hello_message

    message = hello_message(node=1, ttl_s=10.0)
    message.metadata.__dict__["_message_id"] = "m"
    return message
