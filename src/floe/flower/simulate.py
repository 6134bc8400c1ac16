"""A federation on one machine: Flower's simulation over Ray, or all devices in this process."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from floe.assemble.federated import (
    check_protection,
    device_folder,
    device_key,
    devices_file,
    federation_folder,
    server_base,
    server_folder,
    server_parts,
)
from floe.assemble.judging import judge_run
from floe.core.errors import BadConfig, BadRound, FloeError, PrivacySpent
from floe.federated.examples import read_examples, split_examples
from floe.federated.identity import write_devices
from floe.federated.inline import InlineTransport
from floe.flower.client_app import answer, simulated_device
from floe.flower.settings import AppSettings
from floe.learn import Tell, run_rounds

Backend = Literal["ray", "inline"]


def simulate(
    settings: AppSettings,
    *,
    backend: Backend = "ray",
    tell: Tell = lambda _report: None,
    note: Callable[[str], None] = lambda _text: None,
) -> None:
    """Hold all rounds with `settings.simulated` devices; state and reports as of a real server.

    `note` hears of devices whose examples cannot be used: they fail in each round, as a real one
    would, whose server is not told why.

    Raises:
        BadRound, PrivacySpent, BadConfig, BadModel: what stopped it.
    """
    check_protection(settings.federated)
    if settings.federated.secagg and backend == "inline":
        raise BadConfig(
            "secure sums need Flower's messages: use --backend ray", param="federated.secagg"
        )
    if settings.simulated < settings.federated.min_clients:
        raise BadConfig(
            f"{settings.simulated} devices are fewer than the {settings.federated.min_clients} "
            "that a round needs",
            param="federated.min_clients",
        )
    devices = [simulated_device(settings, n) for n in range(settings.simulated)]
    for one in devices:
        try:
            split_examples(read_examples(Path(one.federated.data)))
        except FloeError as error:
            note(f"{one.federated.device} will fail: {error.message}")
    _register(settings, devices)
    if backend == "ray":
        _over_ray(settings, tell)
    else:
        _inline(settings, devices, tell)


def _register(settings: AppSettings, devices: list[AppSettings]) -> None:
    """Keys for all of them, known to the server."""
    home = Path(settings.home)
    keys = {}
    for one in devices:
        folder = device_folder(one.federated, home=home)
        folder.mkdir(parents=True, exist_ok=True)
        keys[one.federated.device] = device_key(folder).public
    write_devices(devices_file(settings.federated, home=home), keys)


def _inline(settings: AppSettings, devices: list[AppSettings], tell: Tell) -> None:
    fed, home = settings.federated, Path(settings.home)
    answers = {d.federated.device: partial(_answer, d) for d in devices}
    transport = InlineTransport(answers)
    digest, shapes = server_base(fed, settings.model, home=home)
    folder = server_folder(fed, home=home)
    parts = server_parts(
        fed,
        folder=folder,
        base_digest=digest,
        shapes=shapes,
        devices={d.federated.device: _public(d) for d in devices},
        repeatable=True,
    )
    with parts.state.locked():
        memory = run_rounds(transport, parts, rounds=fed.rounds, tell=tell)
        judge_run(transport, parts, memory, fed)


def _answer(settings: AppSettings, data: bytes) -> bytes:
    return answer(data, settings)


def _public(settings: AppSettings) -> str:
    return device_key(device_folder(settings.federated, home=Path(settings.home))).public


def _over_ray(settings: AppSettings, tell: Tell) -> None:
    from floe.flower.client_app import make_app as client
    from floe.flower.server_app import OUTCOME
    from floe.flower.server_app import make_app as server

    logging.getLogger("flwr").setLevel(logging.ERROR)
    flower = federation_folder(settings.federated, home=Path(settings.home)) / "flower"
    os.environ["FLWR_HOME"] = str(flower)  # Ray's processes inherit it; nothing goes to ~/.flwr
    outcome = server_folder(settings.federated, home=Path(settings.home)) / OUTCOME
    outcome.unlink(missing_ok=True)
    options: dict[str, Any] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"logging_level": logging.ERROR, "log_to_driver": False},
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(ray|flwr)(\..*)?")
        from flwr.simulation import run_simulation

        run_simulation(
            server_app=server(settings, tell),
            client_app=client(settings),
            num_supernodes=settings.simulated,
            backend_name="ray",
            backend_config=options,
        )
    if not outcome.is_file():
        raise FloeError("Flower's simulation ended before the rounds did")
    _raise_outcome(json.loads(outcome.read_text(encoding="utf-8")))


def _raise_outcome(outcome: dict[str, str]) -> None:
    """The error with which the server's app ended, in this thread; nothing where there was none."""
    if outcome["error"]:
        kinds = {"BadRound": BadRound, "PrivacySpent": PrivacySpent}
        raise kinds.get(outcome["kind"], FloeError)(outcome["error"])
