"""The device's app: a message's bytes to `learn.take_part`, its answer back."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from floe.core.errors import BadConfig, Busy, FloeError
from floe.core.sections import FederatedConfig
from floe.federated.rounds import pack_failure, seed_of, unpack_task
from floe.flower.messages import bytes_in, reply_with, reply_with_name
from floe.flower.settings import KEY, AppSettings


def make_app(settings: AppSettings | None = None) -> Any:
    """A ClientApp; its settings from the node's configuration where none are given."""
    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def hello(message: Any, context: Any) -> Any:
        return reply_with_name(_who(context, settings).federated.device, message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        return reply_with(answer(bytes_in(message), _who(context, settings)), message)

    return app


def answer(data: bytes, settings: AppSettings) -> bytes:
    """What the device of these settings answers to a task's bytes."""
    from floe.assemble.federated import device_folder
    from floe.assemble.learning import device_parts
    from floe.learn import take_part

    fed = settings.federated
    try:
        if settings.simulated and _drops(data, fed):
            raise Busy("this device plays one that fails")
        home = Path(settings.home)
        parts = device_parts(
            fed,
            base=_base(fed.base or settings.model, home),
            folder=device_folder(fed, home=home),
            name=fed.device,
            data=Path(fed.data),
            rank=settings.rank,
            repeatable=settings.simulated > 0,
        )
    except FloeError as error:
        return pack_failure(error)
    return take_part(data, parts)


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
    one = replace(fed, device=files[number].stem, data=str(files[number]))
    return replace(settings, federated=one, rank=fed.ranks[number % len(fed.ranks)])


def _who(context: Any, settings: AppSettings | None) -> AppSettings:
    """Which device this is."""
    if settings is None:
        return AppSettings.read(Path(str(context.node_config[KEY])))
    return simulated_device(settings, int(context.node_config["partition-id"]))


def _drops(data: bytes, fed: FederatedConfig) -> bool:
    """Whether a simulated device fails in this round; another draw in each."""
    drawn = seed_of("dropout", fed.seed, fed.device, unpack_task(data).nonce)
    return drawn / 2**62 < fed.dropout


@lru_cache(maxsize=1)
def _base(name: str, home: Path) -> Any:
    """The base, loaded once in a process that plays several devices."""
    from floe.assemble.learning import open_base

    return open_base(name, home=home)


app = make_app()
