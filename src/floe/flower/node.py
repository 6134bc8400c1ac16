"""A device's SuperNode, with Floe's worker in place of the server's code.

`python -m floe.flower.node SETTINGS --port PORT --secret FILE --parent PID -- FLOWER'S OPTIONS`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from floe.flower.family import end_with, module

AGAIN_S = 1.0


def main() -> None:
    """Take part until told to stop, or until the parent is gone."""
    parser = argparse.ArgumentParser(prog="floe.flower.node")
    parser.add_argument("settings", type=Path)
    parser.add_argument("--secret", required=True)
    for name in ("--port", "--parent"):
        parser.add_argument(name, type=int, required=True)
    cut = sys.argv.index("--")
    told = parser.parse_args(sys.argv[1:cut])
    end_with(told.parent)
    worker = module(
        "floe.flower.worker", str(told.settings), "--address", f"127.0.0.1:{told.port}",
        "--secret", told.secret, "--parent", str(os.getpid()),
    )  # fmt: skip
    threading.Thread(target=_keep, args=(worker,), daemon=True, name="worker").start()
    from flwr.supernode.cli import flower_supernode

    sys.argv = [
        "flower-supernode", *sys.argv[cut + 1 :], "--port", str(told.port),
        "--isolation", "process", "--superexec-auth-secret-file", told.secret,
    ]  # fmt: skip
    flower_supernode()


def _keep(command: list[str]) -> None:
    """Start the worker, and again when it ends: out of memory, say."""
    while True:
        code = subprocess.run(command, check=False).returncode
        print(f"floe: the worker ended with exit {code}; again", file=sys.stderr, flush=True)
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    main()
