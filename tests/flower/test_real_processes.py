"""Flower's own processes on loopback: a SuperLink, four SuperNodes of unequal ranks, kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from floe.assemble.federated import device_folder, device_key, devices_file, server_folder
from floe.core.errors import BadConfig, FloeError
from floe.core.sections import FederatedConfig
from floe.federated.identity import unseal, write_devices
from floe.federated.report import read_reports
from floe.federated.wire import decode
from floe.flower import processes
from floe.flower.client_app import simulated_device
from floe.flower.processes import check_secure, environment, join, serve_rounds
from floe.flower.settings import AppSettings
from floe.testing.tiny_model import make_tiny_model

RANKS = (4, 8, 16, 32)
PATIENCE_S = 300.0


def examples(folder: Path) -> Path:
    """Four devices with two tasks."""
    folder.mkdir()
    for n, task in enumerate(("sum", "sum", "say", "say")):
        rng = random.Random(n)
        rows = []
        for _ in range(24):
            a, b = rng.randrange(99), rng.randrange(99)
            answer = str(a + b) if task == "sum" else f"{a} {b}"
            rows.append(json.dumps({"prompt": f"{task} {a} {b}", "answer": answer}))
        (folder / f"{task}-{n}.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> AppSettings:
    fed = FederatedConfig(
        address=f"127.0.0.1:{processes._free_port()}",
        base=str(make_tiny_model(tmp_path / "tiny").folder),
        data=str(examples(tmp_path / "data")),
        rounds=2,
        steps=2,
        batch=2,
        ranks=RANKS,
        rank=32,
        min_clients=3,
        deadline_s=PATIENCE_S,
    )
    return AppSettings(home=str(tmp_path / "home"), model="", federated=fed)


@pytest.fixture
def devices(settings: AppSettings) -> list[AppSettings]:
    """Four registered devices."""
    found = [replace(simulated_device(settings, n), simulated=0) for n in range(4)]
    home, keys = Path(settings.home), {}
    for one in found:
        folder = device_folder(one.federated, home=home)
        folder.mkdir(parents=True)
        keys[one.federated.device] = device_key(folder).public
    write_devices(devices_file(settings.federated, home=home), keys)
    return found


@pytest.fixture
def nodes(devices: list[AppSettings]) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [join(one) for one in devices]
    yield started
    for node in started:
        processes.end(node, patience_s=1.0)


def until(holds: Callable[[], object], thread: threading.Thread, failed: list[str]) -> None:
    """Wait for something that another process does."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert thread.is_alive(), failed or "the server ended before that"
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def test_c26_four_devices_two_rounds_a_device_and_the_server_killed(
    settings: AppSettings, devices: list[AppSettings], nodes: list[subprocess.Popen[bytes]]
) -> None:
    home, failed = Path(settings.home), []
    state = server_folder(settings.federated, home=home)

    def serve() -> None:
        try:
            serve_rounds(settings)
        except FloeError as error:
            failed.append(error.message)

    server = threading.Thread(target=serve)
    server.start()
    until(lambda: list((state / "round").glob("*/*.bin")), server, failed)
    pid = int((state / "server.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.killpg(nodes[0].pid, signal.SIGKILL)
    nodes[0].wait()
    nodes[0] = join(devices[0])
    server.join(PATIENCE_S)
    assert not server.is_alive()
    assert not failed
    first, second = read_reports(state)
    assert [r["void"] for r in (first, second)] == ["", ""]
    assert first["resumed"]  # what was taken before the kill counts
    assert len(first["accepted"]) >= 3
    assert second["accepted"] == sorted(d.federated.device for d in devices)
    for device, rank in zip(devices, RANKS, strict=True):
        outbox = device_folder(device.federated, home=home) / "outbox"
        sent = decode(unseal(outbox.read_bytes().partition(b"\n")[2]).payload)
        assert (sent.client, sent.state.rank) == (device.federated.device, rank)
    assert (state.parent / "flower" / "config.toml").is_file()


def test_beyond_loopback_there_is_tls_or_nothing(settings: AppSettings) -> None:
    far = replace(settings.federated, address="clinic.example:8743", device="a")
    with pytest.raises(BadConfig, match=r"travel in the open: set federated\.root_certificate and"):
        check_secure(far, server=True)
    with pytest.raises(BadConfig, match=r"is beyond this machine"):
        join(replace(settings, federated=far))
    with pytest.raises(BadConfig, match=r"is beyond this machine"):
        serve_rounds(replace(settings, federated=replace(far, root_certificate="ca.pem")))
    sure = replace(far, root_certificate="ca.pem", certificate="s.pem", certificate_key="s.key")
    assert check_secure(sure, server=True)
    assert not check_secure(settings.federated, server=False)
    assert not check_secure(replace(far, address="[::1]:8743"), server=False)


def test_a_device_without_a_name_cannot_join(settings: AppSettings) -> None:
    with pytest.raises(BadConfig, match=r"this device has no name: set federated\.device"):
        join(settings)


def test_command_lines_carry_certificates_and_node_keys(settings: AppSettings) -> None:
    fed = replace(
        settings.federated,
        certificate="s.pem",
        certificate_key="s.key",
        root_certificate="ca.pem",
        node_key="n.key",
        node_keys="keys",
    )
    link = " ".join(processes.superlink_command(fed, secure=True))
    assert "--ssl-certfile s.pem --ssl-keyfile s.key --ssl-ca-certfile ca.pem" in link
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link
    node = " ".join(processes.supernode_command(fed, Path("/s.json"), secure=True, port=1))
    assert "--root-certificates ca.pem" in node
    assert "--auth-supernode-private-key n.key" in node
    assert "--insecure" in processes.superlink_command(settings.federated, secure=False)


def test_flower_calls_nobody_and_writes_where_it_is_told(tmp_path: Path) -> None:
    seen = environment(tmp_path / "fed", home=tmp_path)
    assert seen["FLWR_TELEMETRY_ENABLED"] == "0"
    assert seen["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert seen["FLWR_HOME"] == str(tmp_path / "fed" / "flower")
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"  # set before flwr is imported here
    from flwr.supercore import telemetry

    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"


def test_a_node_that_ends_is_started_again_more_and_more_seldom(
    settings: AppSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, slept, told = iter((3, 3, 0)), [], []
    monkeypatch.setattr(
        processes, "supernode_command", lambda *_, **__: ["sh", "-c", f"exit {next(codes)}"]
    )
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    one = replace(settings, federated=replace(settings.federated, device="a"))
    processes.stay(one, tell=told.append)
    assert slept == [4.0, 8.0]
    assert "SuperNode ended with exit 3" in told[0]
    assert "again in 8 s" in told[1]


def test_a_server_that_cannot_start_says_where_to_look(
    settings: AppSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "superlink_command", lambda fed, secure: ["false"])
    with pytest.raises(FloeError, match=r"SuperLink ended with exit 1; see .*superlink\.log"):
        serve_rounds(settings)
    monkeypatch.setattr(processes.shutil, "which", lambda name, path=None: None)
    with pytest.raises(FloeError, match=r"flower-supernode is not installed: pip install"):
        join(replace(settings, federated=replace(settings.federated, device="a")))
