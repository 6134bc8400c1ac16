"""Our bytes in Flower's messages: one array of bytes, which Flower sends in pieces by itself."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

BYTES = "floe"
"""The record's and the array's key; the array's `stype` too."""
HELLO = "hello"


def task_message(data: bytes, *, node: int, group: str, ttl_s: float) -> Any:
    """A task for the ClientApp of `node`; after `ttl_s` seconds nobody delivers it any more."""
    return Message(
        _records(data),
        dst_node_id=node,
        message_type=MessageType.TRAIN,
        group_id=group,
        ttl=ttl_s,
    )


def hello_message(*, node: int, ttl_s: float) -> Any:
    """Who are you?"""
    return Message(
        RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, group_id="", ttl=ttl_s
    )


def reply_with(data: bytes, message: Any) -> Any:
    """`data` as the answer to `message`."""
    return Message(_records(data), reply_to=message)


def reply_with_name(name: str, message: Any) -> Any:
    """This device's name as the answer to a hello."""
    return Message(RecordDict({HELLO: ConfigRecord({"name": name})}), reply_to=message)


def bytes_in(message: Any) -> bytes:
    """The bytes in a message; empty where it holds none of ours."""
    record = message.content.array_records.get(BYTES) if message.has_content() else None
    array = record.get(BYTES) if record is not None else None
    return bytes(array.data) if array is not None and array.stype == BYTES else b""


def name_in(message: Any) -> str:
    """The name in the answer to a hello, "" where there is none."""
    record = message.content.config_records.get(HELLO) if message.has_content() else None
    return str(record.get("name", "")) if record is not None else ""


def _records(data: bytes) -> Any:
    array = Array(dtype="uint8", shape=(len(data),), stype=BYTES, data=data)
    return RecordDict({BYTES: ArrayRecord({BYTES: array})})
