"""Real servers in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

CLOUD_KEY = "lives-only"


@dataclass(kw_only=True)
class Served:
    """A running `floe` process that answers on `url`; its stderr is in `log`."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client = field(repr=False)

    def stop(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(home: Path, folder: Path, *arguments: str, port: int) -> Served:
    """`floe ...` in its own process; returns when it is ready."""
    log = folder / f"{arguments[0]}-{port}.log"
    env = {**os.environ, "FLOE_HOME": str(home), "FLOE_CLOUD_KEY": CLOUD_KEY}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "floe", *arguments, "--port", str(port)],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    url = f"http://127.0.0.1:{port}"
    client = httpx.Client(base_url=url, timeout=120, trust_env=False)
    deadline = time.monotonic() + 120
    while True:
        try:
            if client.get("/ready").status_code == 200:
                return Served(process=process, url=url, log=log, client=client)
        except httpx.TransportError:
            time.sleep(0.05)  # nothing listens yet; the deadline below ends the wait
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"floe {arguments} did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def cloud(models_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The logit service with the real stand-in model, one thread."""
    folder = tmp_path_factory.mktemp("cloud")
    served = start(models_home, folder, "cloud", "--threads", "1", port=free_port())
    yield served
    served.stop()


@pytest.fixture
def new_cloud(models_home: Path, tmp_path: Path) -> Iterator[Callable[[], Served]]:
    """Start a logit service that a test may kill."""
    started: list[Served] = []

    def make() -> Served:
        served = start(models_home, tmp_path, "cloud", "--threads", "1", port=free_port())
        started.append(served)
        return served

    yield make
    for served in started:
        served.stop()


@pytest.fixture
def new_edge(models_home: Path, tmp_path: Path) -> Iterator[Callable[[str], Served]]:
    """Start an edge server, fused with the cloud at a URL ("" = none)."""
    started: list[Served] = []

    def make(cloud_url: str, fusion: str = "") -> Served:
        budgets = "token_budget_ms = 5000\nfirst_token_budget_ms = 30000\n"
        text = f"[model]\nthreads = 1\n[fusion]\n{budgets}{fusion}"
        if cloud_url:
            text += f'[cloud]\nkind = "floe"\nurl = "{cloud_url}"\n'
        config = tmp_path / "edge.toml"
        config.write_text(text)
        port = free_port()
        served = start(models_home, tmp_path, "serve", "--config", str(config), port=port)
        started.append(served)
        return served

    yield make
    for served in started:
        served.stop()
