"""Flower's own FedAvg on the updates in a folder, timed from received bytes.

`python -m floe.flower.fedavg_baseline FOLDER N` reads Floe's payloads (`*.update`), lays them out
as a node would send them to a SuperLink, and times what a ServerApp does with N replies: inflate
each message from its objects, then `FedAvg.aggregate_train`. It prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported

from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from floe.federated import wire
from floe.federated.update import Update

Contents = tuple[str, dict[str, bytes]]


def measure(folder: Path, n: int) -> dict[str, float]:
    """Seconds of the processor to inflate and to aggregate `n` replies, and the peak memory."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    received = list(_as_received(folder))
    started = time.process_time()
    replies = [_inflated(received[i % len(received)]) for i in range(n)]
    inflated = time.process_time()
    arrays, _ = FedAvg().aggregate_train(1, replies)
    ended = time.process_time()
    assert arrays is not None
    return {
        "n": n,
        "arrays": len(arrays),
        "inflate_s": inflated - started,
        "aggregate_s": ended - inflated,
        "seconds": ended - started,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _as_received(folder: Path) -> Iterator[Contents]:
    """The object store's bytes of each payload as a reply message."""
    for path in sorted(folder.glob("*.update")):
        message = _message(wire.decode(path.read_bytes()))
        objects = get_all_nested_objects(message)
        yield message.object_id, {name: one.deflate() for name, one in objects.items()}


def _message(update: Update) -> Message:
    arrays = {}
    for name, factors in update.state.modules.items():
        arrays[f"{name}.lora_A.weight"] = Array(np.ascontiguousarray(factors.a_RI))
        arrays[f"{name}.lora_B.weight"] = Array(np.ascontiguousarray(factors.b_OR))
    content = RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"num-examples": update.n_examples}),
        }
    )
    metadata = Metadata(
        run_id=1, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id="",
        group_id="", created_at=0.0, ttl=3600.0, message_type="train",
    )  # fmt: skip
    return Message(content=content, metadata=metadata)


def _inflated(received: Contents) -> Message:
    name, contents = received
    message = inflate_object_from_contents(name, dict(contents))
    assert isinstance(message, Message)
    return message


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
