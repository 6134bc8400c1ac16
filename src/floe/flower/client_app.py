"""The device's app: a message's bytes to `learn.take_part`, its answer back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import MessageType
from flwr.clientapp import ClientApp

from floe.core.errors import BadConfig, Busy, FloeError
from floe.core.sections import FederatedConfig
from floe.federated.rounds import pack_failure, seed_of, unpack_task
from floe.flower.messages import bytes_in, reply_with, reply_with_name
from floe.flower.settings import AppSettings

_NAME_CHARS = 48


def make_app(settings: AppSettings) -> Any:
    """A ClientApp for Flower's simulation: one of the devices that this machine plays."""
    app = ClientApp()

    def reply(message: Any, context: Any) -> Any:
        number = int(context.node_config["partition-id"])
        return reply_of(message, context, simulated_device(settings, number))

    app.query()(reply)
    app.train()(reply)
    return app


def reply_of(message: Any, context: Any, settings: AppSettings) -> Any:
    """What the device of these settings answers to a message; `context` keeps the secrets of a
    secure sum from one of its steps to the next."""
    if message.metadata.message_type.split(".")[0] == MessageType.QUERY:
        return reply_with_name(settings.federated.device, message)
    if settings.federated.secagg:  # whatever is asked: nothing leaves in the open
        return _in_a_sum(message, context, settings)
    return reply_with(answer(bytes_in(message), settings), message)


def answer(data: bytes, settings: AppSettings) -> bytes:
    """What the device of these settings answers to a task's bytes."""
    from floe.learn import take_part

    try:
        parts = _parts(data, settings)
    except FloeError as error:
        return pack_failure(error)
    return take_part(data, parts)


def _in_a_sum(message: Any, context: Any, settings: AppSettings) -> Any:
    """A step of a secure sum, whose update the server cannot read."""
    from floe.assemble.federated import secure_terms
    from floe.assemble.secure_rounds import secure_change
    from floe.flower.secagg_device import secure_answer

    terms = secure_terms(settings.federated)

    def change(data: bytes) -> Any:
        return secure_change(data, _parts(data, settings), terms)

    return secure_answer(message, context, terms, change)


def _parts(data: bytes, settings: AppSettings) -> Any:
    """What the device of these settings needs for a task."""
    from floe.assemble.federated import device_folder
    from floe.assemble.learning import device_parts

    fed = settings.federated
    if settings.simulated and _drops(data, fed):
        raise Busy("this device plays one that fails")
    home = Path(settings.home)
    return device_parts(
        fed,
        base=_base(fed.base or settings.model, home),
        folder=device_folder(fed, home=home),
        name=fed.device,
        data=Path(fed.data),
        rank=settings.rank,
        repeatable=settings.simulated > 0,
    )


def simulated_device(settings: AppSettings, number: int) -> AppSettings:
    """One of the devices that a machine plays: its file of examples, its rank.

    Raises:
        BadConfig: there are fewer files than devices.
    """
    fed = settings.federated
    files = sorted(Path(fed.data).glob("*.jsonl"))
    if number >= len(files):
        raise BadConfig(
            f"{fed.data} has {len(files)} files of examples (*.jsonl): each device needs one",
            param="federated.data",
        )
    name = device_names([path.stem for path in files])[number]
    one = replace(fed, device=name, data=str(files[number]))
    return replace(settings, federated=one, rank=fed.ranks[number % len(fed.ranks)])


def device_names(stems: Sequence[str]) -> list[str]:
    """A name for each file's device: its own, or what is left of it where that can be none."""
    plain = [re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:_NAME_CHARS] for stem in stems]
    names: list[str] = []
    for number, (stem, name) in enumerate(zip(stems, plain, strict=True), start=1):
        if not name or (name != stem and (name in stems or plain.count(name) > 1)):
            name = f"{name}-{number}" if name else f"device-{number}"
        names.append(name)
    return names


def _drops(data: bytes, fed: FederatedConfig) -> bool:
    """Whether a simulated device fails in this round; another draw in each."""
    drawn = seed_of("dropout", fed.seed, fed.device, unpack_task(data).nonce)
    return drawn / 2**62 < fed.dropout


@lru_cache(maxsize=1)
def _base(name: str, home: Path) -> Any:
    """The base, loaded once in a process that plays several devices."""
    from floe.assemble.learning import open_base

    return open_base(name, home=home)
