"""Flower's own processes: a SuperLink that serves rounds, a SuperNode that takes part.

Everything that Flower writes lies in FLOE_HOME/federated/NAME; nothing goes to ~/.flwr.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from floe.assemble.federated import device_folder, federation_folder, server_folder
from floe.core.errors import BadConfig, FloeError, Missing
from floe.core.files import atomic_write
from floe.core.sections import FederatedConfig
from floe.federated.report import read_reports
from floe.flower.server_app import OUTCOME, PID
from floe.flower.settings import KEY, AppSettings
from floe.flower.simulate import raise_outcome

START_S = 60.0
RETRY_S, MOST_S = 2.0, 60.0
RUNS = 5
"""So often in a row a server's app that was killed is started again."""
_POLL_S = 0.1
Show = Callable[[Mapping[str, Any]], None]
_APP = """[project]
name = "floe-fed"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "floe"

[tool.flwr.app.components]
serverapp = "floe_fed:server"
clientapp = "floe_fed:client"

[tool.flwr.app.config]
{key} = {settings}
"""
_MODULE = '''"""What Flower starts: Floe's apps."""

from floe.flower.client_app import app as client
from floe.federated.report import read_reports
from floe.flower.server_app import app as server

__all__ = ["client", "server"]
'''


def check_secure(fed: FederatedConfig, *, server: bool) -> bool:
    """Whether TLS is used.

    Raises:
        BadConfig: the address is beyond loopback and there is none.
    """
    needed = (fed.certificate, fed.root_certificate) if server else (fed.root_certificate,)
    if all(needed):
        return True
    if not _is_loopback(fed.address.rpartition(":")[0]):
        raise BadConfig(
            f"{fed.address} is beyond this machine, and updates would travel in the open: set "
            "federated.root_certificate" + (" and federated.certificate" if server else ""),
            param="federated.root_certificate",
        )
    return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def environment(folder: Path, *, home: Path) -> dict[str, str]:
    """What Flower's processes see: no telemetry, its files in `folder`, quick to begin."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLOE_HOME": str(home),
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def serve_rounds(settings: AppSettings, *, tell: Show = lambda _report: None) -> None:
    """Run a SuperLink and hold all rounds on it; an app that was killed goes on where it was.

    `tell` is handed each new round's report, as JSON.

    Raises:
        BadConfig: no TLS beyond loopback. BadRound, PrivacySpent: what stopped the rounds.
        FloeError: Flower's processes did not start, or died five times in a row.
    """
    fed, home = settings.federated, Path(settings.home)
    secure = check_secure(fed, server=True)
    folder = federation_folder(fed, home=home)
    folder.mkdir(parents=True, exist_ok=True)
    told = folder / "server-settings.json"
    settings.write(told)
    env = environment(folder, home=home)
    _write_app(folder / "app", told)
    _write_connection(fed, Path(env["FLWR_HOME"]), secure=secure)
    log = folder / "superlink.log"
    with child(superlink_command(fed, secure=secure), env=env, log=log) as link:
        _await_port(fed.address, link, log)
        _register_nodes(fed, env)
        for _ in range(RUNS):
            state = server_folder(fed, home=home)
            if _run_to_its_end(state, folder / "app", env, link, log, tell):
                return
    raise FloeError(f"the server's app was killed {RUNS} times in a row; see {log}")


def join(settings: AppSettings, *, local_port: int = 0) -> subprocess.Popen[bytes]:
    """Start a SuperNode that takes part until it is stopped; it waits for a server that is away.

    Raises:
        BadConfig: no TLS beyond loopback, or no name.
    """
    fed, home = settings.federated, Path(settings.home)
    if not fed.device:
        raise BadConfig("this device has no name: set federated.device", param="federated.device")
    secure = check_secure(fed, server=False)
    folder = device_folder(fed, home=home)
    folder.mkdir(parents=True, exist_ok=True)
    told = folder / "settings.json"
    settings.write(told)
    command = supernode_command(fed, told, secure=secure, port=local_port or _free_port())
    return _start(command, env=environment(folder, home=home), log=folder / "supernode.log")


def stay(settings: AppSettings, *, tell: Callable[[str], None]) -> None:
    """Take part until told to stop: a SuperNode that ends is started again, more and more seldom.

    It ends by itself where the server does not know its node key (yet), or forgot it in a restart.

    Raises as `join`.
    """
    wait_s = RETRY_S
    while True:
        began_s = time.monotonic()
        process = join(settings)
        try:
            code = process.wait()
        finally:
            end(process)
        if code == 0:
            return
        wait_s = RETRY_S if time.monotonic() - began_s > MOST_S else min(2 * wait_s, MOST_S)
        log = device_folder(settings.federated, home=Path(settings.home)) / "supernode.log"
        tell(f"Flower's SuperNode ended with exit {code}, see {log}; again in {wait_s:.0f} s")
        time.sleep(wait_s)


def superlink_command(fed: FederatedConfig, *, secure: bool) -> list[str]:
    """The SuperLink's command line."""
    host, _, port = fed.address.rpartition(":")
    command = [_program("flower-superlink"), "--host", host.strip("[]"), "--port", port]
    command += ["--disable-runtime-dependency-installation"]
    if secure:
        command += ["--ssl-certfile", fed.certificate, "--ssl-keyfile", fed.certificate_key]
        command += ["--ssl-ca-certfile", fed.root_certificate]
    else:
        command.append("--insecure")
    return [*command, "--enable-supernode-auth"] if fed.node_keys else command


def supernode_command(fed: FederatedConfig, told: Path, *, secure: bool, port: int) -> list[str]:
    """The SuperNode's command line; `port` is its own, on loopback."""
    command = [_program("flower-supernode"), "--superlink", fed.address, "--port", str(port)]
    command += ["--node-config", f"{KEY}={json.dumps(str(told))}"]
    command += ["--root-certificates", fed.root_certificate] if secure else ["--insecure"]
    if fed.node_key:
        command += ["--auth-supernode-private-key", fed.node_key]
    return command


@contextmanager
def child(
    command: Sequence[str], *, env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all its own, ended with the block."""
    process = _start(command, env=env, log=log)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], *, patience_s: float = 5.0) -> None:
    """End a process started here and all it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _start(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=dict(env), stdout=file, stderr=file, start_new_session=True
        )


def _program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed: pip install 'floe[fed]'")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_app(folder: Path, told: Path) -> None:
    """The app as Flower wants it: a project whose module only names ours."""
    text = _APP.format(key=KEY, settings=json.dumps(str(told)))
    for name, content in (("pyproject.toml", text), ("floe_fed.py", _MODULE)):
        with atomic_write(folder / name) as file:
            file.write(content.encode())


def _write_connection(fed: FederatedConfig, flower_home: Path, *, secure: bool) -> None:
    """Where Flower's command line finds the SuperLink."""
    trust = (
        f"root-certificates = {json.dumps(fed.root_certificate)}" if secure else "insecure = true"
    )
    address = json.dumps(fed.address)
    text = f'[superlink]\ndefault = "floe"\n\n[superlink.floe]\naddress = {address}\n{trust}\n'
    with atomic_write(flower_home / "config.toml") as file:
        file.write(text.encode())


def _await_port(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.rpartition(":")
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        _still_there(process, log)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise FloeError(f"Flower's SuperLink did not listen on {address} in {START_S:.0f} s; see {log}")


def _still_there(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise FloeError(f"Flower's SuperLink ended with exit {process.returncode}; see {log}")


def _register_nodes(fed: FederatedConfig, env: Mapping[str, str]) -> None:
    """Let in the SuperNodes whose public keys lie in the folder; the file's stem is the name."""
    if not fed.node_keys:
        return
    keys = sorted(Path(fed.node_keys).expanduser().glob("*.pub"))
    if not keys:
        raise BadConfig(f"{fed.node_keys} holds no public key (*.pub)", param="federated.node_keys")
    for key in keys:
        _flwr(["supernode", "register", str(key), "floe", "--name", key.stem], env)


def _run_to_its_end(
    state: Path,
    app: Path,
    env: Mapping[str, str],
    link: subprocess.Popen[bytes],
    log: Path,
    tell: Show,
) -> bool:
    """Start the server's app; True once it says how it ended, False when it was killed."""
    for name in (OUTCOME, PID):
        (state / name).unlink(missing_ok=True)
    _flwr(["run", str(app), "floe"], env)
    until_s, told = time.monotonic() + START_S, len(read_reports(state))
    while True:
        _still_there(link, log)
        for report in read_reports(state)[told:]:
            tell(report)
            told += 1
        if (state / OUTCOME).is_file():
            raise_outcome(json.loads((state / OUTCOME).read_text(encoding="utf-8")))
            return True
        if (state / PID).is_file():
            if not _alive(int((state / PID).read_text())) and not (state / OUTCOME).is_file():
                return False
        elif time.monotonic() > until_s:
            raise FloeError(f"the server's app did not start in {START_S:.0f} s; see {log}")
        time.sleep(_POLL_S)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
    else:
        return state != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _flwr(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        [_program("flwr"), *arguments],
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise FloeError(f"flwr {arguments[0]} failed: {said[-1][:300]}")
