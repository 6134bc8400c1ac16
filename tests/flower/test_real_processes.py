"""Flower's own processes on loopback: a SuperLink, four SuperNodes of unequal ranks, kills."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from floe.assemble.federated import device_folder, device_key, devices_file, server_folder
from floe.core.errors import BadConfig, BadRequest, FloeError
from floe.core.sections import FederatedConfig
from floe.federated.identity import write_devices
from floe.federated.wire import decode
from floe.flower import family, link, processes
from floe.flower.certificates import make_authority, make_device, make_server, node_public_key
from floe.flower.inner import SECRET_HEADER
from floe.flower.processes import check_secure, environment, join, serve_rounds
from floe.flower.settings import AppSettings
from floe.testing.tiny_model import make_tiny_model

RANKS = (4, 8, 16, 32)
NAMES = ("sum-0", "sum-1", "say-2", "say-3")
PATIENCE_S = 300.0


def examples(folder: Path) -> Path:
    """Four devices with two tasks."""
    folder.mkdir()
    for n, name in enumerate(NAMES):
        rng = random.Random(n)
        rows = []
        for _ in range(24):
            a, b = rng.randrange(99), rng.randrange(99)
            answer = str(a + b) if name.startswith("sum") else f"{a} {b}"
            rows.append(json.dumps({"prompt": f"{name[:3]} {a} {b}", "answer": answer}))
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture
def fed(tmp_path: Path) -> FederatedConfig:
    return FederatedConfig(
        address=f"127.0.0.1:{family.free_port()}",
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


@pytest.fixture
def settings(tmp_path: Path, fed: FederatedConfig) -> AppSettings:
    return AppSettings(home=str(tmp_path / "home"), model="", federated=fed)


def _heed_interrupts() -> None:
    """A suite that runs in the background has SIGINT ignored, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Machines:
    """A server and devices: each a `floe fed` of its own, ended with the test."""

    def __init__(self, folder: Path, fed: FederatedConfig) -> None:
        self.folder, self.fed, self.home = folder, fed, folder / "home"
        self.running: list[subprocess.Popen[bytes]] = []

    def config(self, name: str, **more: object) -> Path:
        """A TOML file for one of them."""
        table = {k: v for k, v in asdict(self.fed).items() if v != getattr(FederatedConfig(), k)}
        lines = [f"{k} = {json.dumps(v)}" for k, v in (table | more).items()]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(["[federated]", *lines, ""]))
        return path

    def floe(self, *arguments: object, out: str = "out") -> subprocess.Popen[bytes]:
        """Start `floe fed ...`; what it says lies in the folder."""
        env = os.environ | {"FLOE_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "floe", "fed", *map(str, arguments)]
        with (self.folder / f"{out}.log").open("ab") as said:
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
                preexec_fn=_heed_interrupts,
            )  # fmt: skip
        self.running.append(process)
        return process

    def said(self, out: str) -> str:
        return (self.folder / f"{out}.log").read_text()

    def below(self) -> list[str]:
        """Command lines of all processes of this federation."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ").decode()
                if str(self.folder) in line:
                    found.append(line)
        return found


@pytest.fixture
def machines(tmp_path: Path, fed: FederatedConfig) -> Iterator[Machines]:
    made = Machines(tmp_path, fed)
    yield made
    for process in made.running:
        family.end(process, patience_s=10.0)
        assert process.stdout is not None
        process.stdout.close()


def until(holds: Callable[[], object], *alive: subprocess.Popen[bytes]) -> None:
    """Wait for something that another process does."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert all(p.poll() is None for p in alive), "a process ended before that"
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def status(address: str, path: str, root: Path) -> int:
    """What the outer face answers to a stranger's POST."""
    context = ssl.create_default_context(cafile=root)
    host, port = address.split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30.0)
    connection.request("POST", path, body=b"", headers={"content-type": "application/x-protobuf"})
    answer = connection.getresponse().status
    connection.close()
    return answer


def test_c26_four_devices_two_rounds_a_device_and_the_server_killed(machines: Machines) -> None:
    tls = machines.folder / "tls"
    made = machines.floe(
        "certificates", tls, "--host", "127.0.0.1", *(w for n in NAMES for w in ("--device", n))
    )
    assert made.wait(PATIENCE_S) == 0
    keys, joined = {}, {}
    for name in NAMES:
        fed = replace(machines.fed, device=name)
        folder = device_folder(fed, home=machines.home)
        folder.mkdir(parents=True)
        keys[name] = device_key(folder).public
    write_devices(devices_file(machines.fed, home=machines.home), keys)
    server_config = machines.config(
        "server",
        certificate=str(tls / "server" / "server.crt"),
        certificate_key=str(tls / "server" / "server.key"),
        root_certificate=str(tls / "server" / "ca.crt"),
        node_keys=str(tls / "server" / "nodes"),
    )

    def serve() -> subprocess.Popen[bytes]:
        return machines.floe("server", "--config", server_config, "--json", out="server")

    def join(name: str, rank: int) -> subprocess.Popen[bytes]:
        config = machines.config(
            name,
            device=name,
            data=str(Path(machines.fed.data) / f"{name}.jsonl"),
            root_certificate=str(tls / name / "ca.crt"),
            node_key=str(tls / name / "node.key"),
        )
        return machines.floe("join", "--config", config, "--rank", rank, out=name)

    server = serve()
    for name, rank in zip(NAMES, RANKS, strict=True):
        joined[name] = join(name, rank)
    state = server_folder(machines.fed, home=machines.home)
    until(lambda: list((state / "round").glob("*/*.bin")), server, *joined.values())
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
        assert status(machines.fed.address, path, tls / "server" / "ca.crt") == 404
    for process in (server, joined[NAMES[0]]):  # and with them whatever they started
        process.kill()
        process.wait()
    until(lambda: not [p for p in machines.below() if "flower.link" in p])
    server, joined[NAMES[0]] = serve(), join(NAMES[0], RANKS[0])
    assert server.stdout is not None
    told = json.loads(server.stdout.read())
    assert server.wait() == 0, machines.said("server")
    first, second = told["rounds"]
    assert [r["void"] for r in (first, second)] == ["", ""]
    assert first["resumed"]  # what was taken before the kill counts
    assert len(first["accepted"]) >= 3
    assert second["accepted"] == sorted(NAMES)
    for name, rank in zip(NAMES, RANKS, strict=True):
        outbox = device_folder(replace(machines.fed, device=name), home=machines.home) / "outbox"
        sent = decode(outbox.read_bytes().partition(b"\n")[2])
        assert (sent.client, sent.state.rank) == (name, rank)
    joined[NAMES[1]].send_signal(signal.SIGINT)
    joined[NAMES[2]].send_signal(signal.SIGTERM)
    assert joined[NAMES[1]].wait(PATIENCE_S) == 0
    assert joined[NAMES[2]].wait(PATIENCE_S) == 128 + signal.SIGTERM
    until(lambda: not [p for p in machines.below() if NAMES[1] in p or NAMES[2] in p])
    assert "leaving" in machines.said(NAMES[1])


def test_beyond_loopback_there_is_tls_or_nothing(settings: AppSettings) -> None:
    far = replace(settings.federated, address="clinic.example:8743", device="a")
    with pytest.raises(BadConfig, match=r"travel in the open: set federated\.root_certificate and"):
        check_secure(far, server=True)
    with pytest.raises(BadConfig, match=r"is beyond this machine"):
        join(replace(settings, federated=far))
    with pytest.raises(BadConfig, match=r"is beyond this machine"):
        serve_rounds(replace(settings, federated=replace(far, root_certificate="ca.pem")))
    assert not check_secure(settings.federated, server=False)
    assert not check_secure(replace(far, address="[::1]:8743"), server=False)
    with pytest.raises(BadConfig, match=r"node keys need TLS: set federated\.root_certificate and"):
        check_secure(replace(settings.federated, node_keys="keys"), server=True)


def test_files_for_tls_are_made_and_checked(fed: FederatedConfig, tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    assert make_authority(tls)
    assert not make_authority(tls)  # what a federation trusts is never replaced
    make_server(tls, ["clinic.example", "10.0.0.5"])
    assert make_device(tls, "ward-3")
    kept = (tls / "ward-3" / "node.key").read_bytes()
    assert not make_device(tls, "ward-3")
    assert (tls / "ward-3" / "node.key").read_bytes() == kept
    modes = {p.name: p.stat().st_mode & 0o777 for p in tls.rglob("*.key")}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "node.key": 0o600}
    assert not list((tls / "server").glob("ca.key"))
    far = replace(
        fed,
        address="clinic.example:8743",
        certificate=str(tls / "server" / "server.crt"),
        certificate_key=str(tls / "server" / "server.key"),
        root_certificate=str(tls / "server" / "ca.crt"),
        node_keys=str(tls / "server" / "nodes"),
        node_key=str(tls / "ward-3" / "node.key"),
    )
    assert check_secure(far, server=True)
    assert check_secure(far, server=False)
    public = node_public_key(tls / "server" / "nodes" / "ward-3.pub")
    assert public.startswith(b"-----BEGIN PUBLIC KEY-----")
    for name in ("../x", "server", "authority"):
        with pytest.raises(BadRequest, match=r"name is not allowed|cannot be named"):
            make_device(tls, name)
    with pytest.raises(BadRequest, match=r"'a b' is no host: a name as learn\.example\.org"):
        make_server(tls, ["a b"])
    with pytest.raises(BadConfig, match=r"holds no usable ca\.key and ca\.crt"):
        make_server(tmp_path / "none", ["a"])


@pytest.mark.parametrize(
    ("setting", "content", "why"),
    [
        ("root_certificate", None, "No such file"),
        ("root_certificate", b"no", "no certificate in PEM form"),
        ("certificate", b"no", "no certificate in PEM form, or its key is none"),
        ("certificate_key", "another", r"does not belong to federated\.certificate_key"),
        ("node_key", b"no", "no key in OpenSSH form"),
        ("node_key", None, "No such file"),
    ],
)
def test_wrong_files_are_said_before_anything_starts(
    fed: FederatedConfig, tmp_path: Path, setting: str, content: bytes | str | None, why: str
) -> None:
    tls, wrong = tmp_path / "tls", tmp_path / "wrong"
    make_authority(tls)
    make_server(tls, ["clinic.example"])
    make_device(tls, "a")
    good = {
        "certificate": tls / "server" / "server.crt",
        "certificate_key": tls / "server" / "server.key",
        "root_certificate": tls / "server" / "ca.crt",
        "node_key": tls / "a" / "node.key",
    }
    if content == "another":
        wrong = tls / "authority" / "ca.key"
    elif content is not None:
        wrong.write_bytes(content)
    broken = replace(fed, **{k: str(v) for k, v in (good | {setting: wrong}).items()})
    with pytest.raises(BadConfig, match=why):
        check_secure(broken, server=setting != "node_key")


def test_node_keys_are_checked_before_the_server_starts(
    settings: AppSettings, tmp_path: Path
) -> None:
    tls = tmp_path / "tls"
    make_authority(tls)
    make_server(tls, ["127.0.0.1"])
    (tls / "server" / "nodes").mkdir()
    fed = replace(
        settings.federated,
        certificate=str(tls / "server" / "server.crt"),
        certificate_key=str(tls / "server" / "server.key"),
        root_certificate=str(tls / "server" / "ca.crt"),
        node_keys=str(tls / "server" / "nodes"),
    )
    with pytest.raises(BadConfig, match=r"holds no public key \(\*\.pub\)"):
        serve_rounds(replace(settings, federated=fed))
    (tls / "server" / "nodes" / "a.pub").write_text("ssh-rsa nothing")
    with pytest.raises(BadConfig, match=r"a\.pub cannot be used: no public key in OpenSSH form"):
        serve_rounds(replace(settings, federated=fed))


@pytest.fixture
def registered(settings: AppSettings) -> None:
    path = devices_file(settings.federated, home=Path(settings.home))
    write_devices(path, {"a": "key"})


def test_a_server_needs_to_know_its_devices(settings: AppSettings) -> None:
    with pytest.raises(BadConfig, match=r"cannot read the devices in .*devices\.toml"):
        serve_rounds(settings)


def test_another_server_than_the_certificate_says_is_not_joined(
    settings: AppSettings, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for tls in (ours, theirs):
        make_authority(tls)
        make_server(tls, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs / "server" / "server.crt", theirs / "server" / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            for _ in range(2):  # whether somebody is there, and then who
                with contextlib.suppress(OSError):
                    context.wrap_socket(listening.accept()[0], server_side=True).close()

        thread = threading.Thread(target=accept)
        thread.start()
        fed = replace(
            settings.federated,
            device="a",
            address=f"127.0.0.1:{listening.getsockname()[1]}",
            root_certificate=str(ours / "server" / "ca.crt"),
        )
        with pytest.raises(BadConfig, match=r"is not the one of federated\.root_certificate"):
            processes.stay(replace(settings, federated=fed), tell=lambda _text: None)
        thread.join()


@pytest.mark.usefixtures("registered")
def test_an_address_that_is_taken_is_said(settings: AppSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        fed = replace(settings.federated, address=address)
        with pytest.raises(
            BadConfig, match=rf"cannot listen on {address}: another program listens"
        ):
            serve_rounds(replace(settings, federated=fed))


async def asked(face: Any, path: str, *bodies: bytes, **headers: str) -> tuple[int, list[bytes]]:
    """What a face answers, and the bodies that came through to Flower."""
    through, sent, parts = [], [], list(bodies or (b"",))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        through.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, object]:
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": path,
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }
    await face(app)(scope, receive, send)
    return sent[0]["status"], through


async def test_devices_reach_what_is_for_devices_and_nothing_large() -> None:
    face = partial(link.Outer, max_bytes=10)
    assert await asked(face, "/v1/fleet/pull-messages", b"12", b"34") == (200, [b"1234"])
    assert await asked(face, "/v1/fleet/push-object", b"12345", b"678901") == (413, [])
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "/v1/fleetx"):
        assert await asked(face, path) == (404, [])


async def test_runs_are_started_with_the_secret_alone() -> None:
    face = partial(link.Inner, secret=b"s3")
    right = {SECRET_HEADER: b"s3".hex()}
    assert await asked(face, "/v1/control/start-run", **right) == (200, [b""])
    for headers in ({}, {SECRET_HEADER: "73"}, {SECRET_HEADER: "s3"}):
        assert await asked(face, "/v1/control/start-run", **headers) == (403, [])
    assert await asked(face, "/v1/runtime/pull-messages") == (200, [b""])  # by Flower's own tokens


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
    here = Path("/there")
    link = " ".join(processes.superlink_command(fed, port=1, secret=here / "s", secure=True))
    assert "--certificate s.pem --certificate-key s.key --node-auth" in link
    node = " ".join(processes.supernode_command(fed, here, secure=True, port=1))
    assert "--root-certificates ca.pem" in node
    assert "--auth-supernode-private-key n.key" in node
    plain = replace(settings.federated, certificate="s.pem")
    assert "pem" not in " ".join(
        processes.superlink_command(plain, port=1, secret=here / "s", secure=False)
    )
    assert "--insecure" in processes.supernode_command(plain, here, secure=False, port=1)


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
    codes, slept, told = iter((0, 3, 3)), [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        processes, "supernode_command", lambda *_, **__: ["sh", "-c", f"exit {next(codes)}"]
    )
    monkeypatch.setattr(processes.time, "sleep", sleep)
    one = replace(settings, federated=replace(settings.federated, device="a"))
    with pytest.raises(KeyboardInterrupt):
        processes.stay(one, tell=told.append)
    assert slept == [2.0, 4.0, 8.0]
    assert "nobody answers at 127.0.0.1:" in told[0]
    assert "SuperNode ended with exit 0" in told[1]  # a server that was started anew forgot it
    assert "again in 8 s" in told[3]


@pytest.mark.usefixtures("registered")
def test_a_server_that_cannot_start_says_where_to_look(
    settings: AppSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "superlink_command", lambda fed, **_: ["false"])
    with pytest.raises(FloeError, match=r"SuperLink ended with exit 1; see .*superlink\.log"):
        serve_rounds(settings)
