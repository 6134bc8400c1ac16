"""A server that holds rounds over a SuperLink, a device that takes part through a SuperNode.

Everything that Flower writes lies in FLOE_HOME/federated/NAME; nothing goes to ~/.flwr.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import os
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from floe.assemble.federated import device_folder, devices_file, federation_folder
from floe.core.errors import BadConfig, FloeError
from floe.core.files import atomic_write
from floe.core.sections import FederatedConfig
from floe.federated.identity import read_devices
from floe.flower.certificates import node_public_key, read_node_key
from floe.flower.family import child, end, free_port, module, start
from floe.flower.settings import AppSettings
from floe.learn import Tell

START_S = 60.0
RETRY_S, MOST_S, LONG_S = 1.0, 60.0, 8.0
"""A SuperNode that lived longer than the last had a server, and begins again at once."""
RUNS = 5
"""So often in a row a SuperLink that died is started again."""
_POLL_S = 0.05
# Flower wants an app to start a run. No process runs this one: both ends run Floe's own code.
_APP = """[project]
name = "floe-fed"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "floe"

[tool.flwr.app.components]
serverapp = "floe_fed:app"
clientapp = "floe_fed:app"
"""


def check_secure(fed: FederatedConfig, *, server: bool) -> bool:
    """Whether TLS is used.

    Raises:
        BadConfig: the address is beyond loopback and there is none, or a file of it is missing or
            is not what it must be.
    """
    needed = (fed.certificate, fed.root_certificate) if server else (fed.root_certificate,)
    if all(needed):
        _check_files(fed, server=server)
        return True
    if not _is_loopback(fed.address.rpartition(":")[0]):
        raise BadConfig(
            f"{fed.address} is beyond this machine, and updates would travel in the open: set "
            "federated.root_certificate"
            + (" and federated.certificate" if server else "")
            + "; `floe fed certificates` makes them",
            param="federated.root_certificate",
        )
    if fed.node_keys if server else fed.node_key:
        raise BadConfig(
            "node keys need TLS: set federated.root_certificate"
            + (" and federated.certificate" if server else ""),
            param="federated.node_keys" if server else "federated.node_key",
        )
    return False


def _check_files(fed: FederatedConfig, *, server: bool) -> None:
    """Raise BadConfig for files that TLS or Flower would fail on later, or nowhere readable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(fed.root_certificate)
    except (OSError, ssl.SSLError) as error:
        raise _unusable("root_certificate", fed.root_certificate, error) from error
    if server:
        try:
            context.load_cert_chain(fed.certificate, fed.certificate_key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise _unusable("certificate", fed.certificate, error) from error
    elif fed.node_key:
        read_node_key(Path(fed.node_key))


def _unusable(setting: str, path: str, error: OSError) -> BadConfig:
    known = {"KEY_VALUES_MISMATCH": "it does not belong to federated.certificate_key"}
    reason = getattr(error, "reason", None)
    why = known.get(reason or "", "it is no certificate in PEM form, or its key is none")
    if not isinstance(error, ssl.SSLError):
        why = os.strerror(error.errno) if error.errno else str(error)
    return BadConfig(
        f"federated.{setting} = {json.dumps(path)} cannot be used: {why}",
        param=f"federated.{setting}",
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def environment(folder: Path, *, home: Path) -> dict[str, str]:
    """What Flower's processes see: no telemetry, its files in `folder`."""
    return {
        **os.environ,
        "FLOE_HOME": str(home),
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def serve_rounds(
    settings: AppSettings,
    *,
    tell: Tell = lambda _report: None,
    note: Callable[[str], None] = lambda _text: None,
) -> None:
    """Run a SuperLink and hold all rounds on it; when it dies, go on with another.

    `tell` is handed each new round's report, `note` what else there is to say.

    Raises:
        BadConfig: no TLS beyond loopback, unusable files, an address that is taken. BadRound,
        PrivacySpent: what stopped the rounds. FloeError: the SuperLink died five times.
    """
    from floe.flower.server_app import hold_rounds, run_of

    fed, home = settings.federated, Path(settings.home)
    secure = check_secure(fed, server=True)
    keys = _node_keys(fed)
    read_devices(devices_file(fed, home=home))  # told here, before anything is started
    _check_free(fed.address)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = federation_folder(fed, home=home)
    folder.mkdir(parents=True, exist_ok=True)
    env, log, app = environment(folder, home=home), folder / "superlink.log", folder / "app"
    secret, port = new_secret(folder / "secret"), free_port()
    _write_app(app)
    for _ in range(RUNS):
        command = superlink_command(fed, port=port, secret=folder / "secret", secure=secure)
        with child(command, env=env, log=log) as link:
            _await_port(fed.address, link, log)
            try:
                with run_of(app, port=port, secret=secret, node_keys=keys) as grid:
                    hold_rounds(grid, settings, tell)
                return
            except FloeError:
                raise
            except Exception as error:  # of whatever library noticed first that the link is gone
                if link.poll() is None:
                    raise
                note(f"Flower's SuperLink ended ({type(error).__name__}), see {log}; again")
    raise FloeError(f"Flower's SuperLink ended {RUNS} times in a row; see {log}")


def join(settings: AppSettings, *, local_port: int = 0) -> subprocess.Popen[bytes]:
    """Start a SuperNode that takes part until it is stopped; it waits for a server that is away.

    Raises:
        BadConfig: no TLS beyond loopback, unusable files, or no name.
    """
    fed, home = settings.federated, Path(settings.home)
    if not fed.device:
        raise BadConfig("this device has no name: set federated.device", param="federated.device")
    secure = check_secure(fed, server=False)
    folder = device_folder(fed, home=home)
    folder.mkdir(parents=True, exist_ok=True)
    settings.write(folder / "settings.json")
    new_secret(folder / "secret")
    command = supernode_command(fed, folder, secure=secure, port=local_port or free_port())
    return start(command, env=environment(folder, home=home), log=folder / "supernode.log")


def stay(settings: AppSettings, *, tell: Callable[[str], None]) -> None:
    """Take part until interrupted: a SuperNode that ends is started again, more and more seldom.

    It ends by itself, without an error even, where the server was started anew and does not know
    it any more, or does not know its node key (yet).

    Raises as `join`, and BadConfig for a server that is not who its certificate should say.
    """
    wait_s, fed = RETRY_S, settings.federated
    secure = check_secure(fed, server=False)
    if not _is_reachable(fed.address):
        tell(f"nobody answers at {fed.address} yet; waiting for the server")
    elif secure:
        _check_server(fed)
    while True:
        began_s = time.monotonic()
        process = join(settings)
        try:
            code = process.wait()
        finally:
            end(process)
        wait_s = RETRY_S if time.monotonic() - began_s > LONG_S else min(2 * wait_s, MOST_S)
        log = device_folder(settings.federated, home=Path(settings.home)) / "supernode.log"
        tell(f"Flower's SuperNode ended with exit {code}, see {log}; again in {wait_s:.0f} s")
        time.sleep(wait_s)


def superlink_command(fed: FederatedConfig, *, port: int, secret: Path, secure: bool) -> list[str]:
    """The SuperLink's command line; `port` is its inner one, on loopback."""
    command = module("floe.flower.link", "--address", fed.address, "--inner-port", str(port))
    command += ["--secret", str(secret), "--parent", str(os.getpid())]
    if secure:
        command += ["--certificate", fed.certificate, "--certificate-key", fed.certificate_key]
    return [*command, "--node-auth"] if fed.node_keys else command


def supernode_command(fed: FederatedConfig, folder: Path, *, secure: bool, port: int) -> list[str]:
    """The SuperNode's command line; `port` is its own, on loopback."""
    command = module("floe.flower.node", str(folder / "settings.json"), "--port", str(port))
    command += ["--secret", str(folder / "secret"), "--parent", str(os.getpid()), "--"]
    command += ["--superlink", fed.address]
    command += ["--root-certificates", fed.root_certificate] if secure else ["--insecure"]
    if fed.node_key:
        command += ["--auth-supernode-private-key", fed.node_key]
    return command


def new_secret(path: Path) -> bytes:
    """A secret for the processes of one start, in a file that only its owner can read."""
    secret = secrets.token_bytes(32)
    with atomic_write(path) as file:
        file.write(secret)
    return secret


def _write_app(folder: Path) -> None:
    for name, content in (("pyproject.toml", _APP), ("floe_fed.py", "app = None\n")):
        with atomic_write(folder / name) as file:
            file.write(content.encode())


def _check_free(address: str) -> None:
    """Raise BadConfig where nobody can listen on the address."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, proto, _, place = found[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there"
        raise BadConfig(
            f"the server cannot listen on {address}: {why}; set federated.address",
            param="federated.address",
        ) from error


def _is_reachable(address: str, *, wait_s: float = 2.0) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=wait_s).close()
    except OSError:
        return False
    return True


def _check_server(fed: FederatedConfig) -> None:
    """Raise BadConfig for a certificate that Flower would refuse, again and again and silently."""
    host, _, port = fed.address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=fed.root_certificate)
    try:
        with socket.create_connection((host, int(port)), timeout=START_S) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or "no TLS"
        raise BadConfig(
            f"the server at {fed.address} is not the one of federated.root_certificate, or its "
            f"certificate is for another name: {why}",
            param="federated.root_certificate",
        ) from error
    except OSError:
        return  # it has gone again: Flower waits for it


def _await_port(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise FloeError(f"Flower's SuperLink ended with exit {process.returncode}; see {log}")
        if _is_reachable(address, wait_s=1.0):
            return
        time.sleep(_POLL_S)
    raise FloeError(f"Flower's SuperLink did not listen on {address} in {START_S:.0f} s; see {log}")


def _node_keys(fed: FederatedConfig) -> Mapping[str, bytes]:
    """Name -> public key of the SuperNodes that are let in; the file's stem is the name.

    Raises:
        BadConfig: the folder holds none, or a file is no such key.
    """
    if not fed.node_keys:
        return {}
    paths = sorted(Path(fed.node_keys).expanduser().glob("*.pub"))
    if not paths:
        raise BadConfig(f"{fed.node_keys} holds no public key (*.pub)", param="federated.node_keys")
    return {path.stem: node_public_key(path) for path in paths}
