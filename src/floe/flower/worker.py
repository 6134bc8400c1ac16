"""What answers tasks on a device: Floe's own code, whatever code the server would send.

Flower's SuperNode downloads the server's app and runs it. A server could then read a device's
examples. This process takes the SuperNode's tasks instead and hands them to
`client_app`; what the server sends is data. It stays between tasks, so that torch and the
base are loaded once, and begins anew when it has long had nothing to do, which frees them.

`python -m floe.flower.worker SETTINGS --address HOST:PORT --secret FILE --parent PID`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from floe.flower.client_app import reply_of
from floe.flower.family import end_with
from floe.flower.inner import acquire, runtime_client
from floe.flower.settings import AppSettings

POLL_S = 0.5
IDLE_S = 300.0
"""After so long without a task, memory is given back."""
_log = logging.getLogger("floe.flower.worker")


def reply_to(message: Any, context: Any, settings: AppSettings) -> Any:
    """This device's answer. A failure is told by its kind: its text may quote an example."""
    try:
        return reply_of(message, context, settings)
    except Exception as error:
        kind = type(error).__name__
        _log.error("a task failed with %s", kind)
        told = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=kind)
        return Message(told, reply_to=message)


def work_on(address: str, token: str, settings: AppSettings) -> None:
    """Pull a task, answer it, push the answer."""
    client = runtime_client(address, token=token)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    status, context = SubStatus.FAILED, None
    try:
        message, context, _run, _code_of_the_server = pull_task_input(client)
        push_message(client, reply_to(message, context, settings), context)
        status = SubStatus.COMPLETED
    finally:
        push_task_output(client, context, status, "")
        heartbeat.stop()
        client.close()


def main() -> None:
    """Answer tasks until the SuperNode is gone."""
    parser = argparse.ArgumentParser(prog="floe.flower.worker")
    parser.add_argument("settings", type=Path)
    for name in ("--address", "--secret"):
        parser.add_argument(name, required=True)
    parser.add_argument("--parent", type=int, required=True)
    told = parser.parse_args()
    end_with(told.parent)
    client = runtime_client(told.address, secret=Path(told.secret).read_bytes())
    idle_since_s = time.monotonic()
    while True:
        token = acquire(client, TaskType.CLIENT_APP)
        if token:
            work_on(told.address, token, AppSettings.read(told.settings))
            idle_since_s = time.monotonic()
        elif "torch" in sys.modules and time.monotonic() - idle_since_s > IDLE_S:
            os.execv(
                sys.executable, [sys.executable, "-P", "-m", "floe.flower.worker", *sys.argv[1:]]
            )
        else:
            time.sleep(POLL_S)


if __name__ == "__main__":
    main()
