"""`floe fed simulate`, `server`, `join`, `report`: rounds on one machine, or between many."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, read_config, say
from floe.cli.fed_common import ended_by_exit, plan_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from floe.core.config import Config
    from floe.core.sections import FederatedConfig
    from floe.flower.settings import AppSettings

NameOption = Annotated[str | None, typer.Option("--name", help="Default: federated.name.")]
RoundsOption = Annotated[int | None, typer.Option(help="In all; default: federated.rounds.", min=1)]
Shown = Callable[[Mapping[str, Any]], None]


def simulate(
    data: Annotated[
        Path | None, typer.Argument(help="Folder with one .jsonl a device; or federated.data.")
    ] = None,
    rounds: RoundsOption = None,
    backend: Annotated[
        Literal["ray", "inline"],
        typer.Option(help="ray: Flower's simulation, in parallel; inline: in this process."),
    ] = "ray",
    base: Annotated[str | None, typer.Option(help="Hugging Face folder or a model's name.")] = None,
    name: NameOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold all rounds on this machine: every .jsonl file is a device, ranks go round.

    Stopped half-way, by a kill too, the same command goes on in the same round. The reports and
    adapters lie in FLOE_HOME/federated/NAME.

    Example: floe fed simulate ./clients --rounds 2 --backend inline
    """
    from floe.core.errors import BadRequest

    settings = read_config(config, model=model)
    fed = _changed(settings, data=data and str(data), rounds=rounds, base=base, name=name)
    if not fed.data:
        raise BadRequest("name the folder with the devices' examples, or set federated.data")
    if not Path(fed.data).is_dir():
        raise BadRequest(f"{fed.data} is no folder: one .jsonl a device is needed", param="data")
    count = len(list(Path(fed.data).glob("*.jsonl")))
    if not count:
        raise BadRequest(f"{fed.data} holds no .jsonl file", param="data")
    with _flower():
        from floe.flower.simulate import simulate as run
    told = dataclasses.replace(_app_settings(settings, fed), simulated=count)
    with _rounds_shown(fed.rounds, quiet=as_json) as shown:
        run(
            told,
            backend=backend,
            tell=lambda report: shown(report.to_json()),
            note=lambda text: say(f"floe: {text}"),
        )
    _print_reports(_reports(fed), as_json=as_json)


def server(
    address: Annotated[
        str | None, typer.Option(help="host:port; default: federated.address.")
    ] = None,
    rounds: RoundsOption = None,
    base: Annotated[str | None, typer.Option(help="Hugging Face folder or a model's name.")] = None,
    name: NameOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold rounds for devices that join: a Flower SuperLink with TLS, or on loopback without.

    Killed in a round, it goes on in the same round when it is started again.

    Example: floe fed server --rounds 5
    """
    settings = read_config(config, model=model)
    fed = _changed(settings, address=address, rounds=rounds, base=base, name=name)
    with _flower():
        from floe.flower.processes import check_secure, serve_rounds
    secure = check_secure(fed, server=True)
    say(
        f"floe: rounds on {fed.address}, {'TLS' if secure else 'without TLS, loopback alone'}; "
        f"devices join with: floe fed join --address {fed.address}"
    )
    with _rounds_shown(fed.rounds, quiet=as_json) as shown, ended_by_exit():
        serve_rounds(
            _app_settings(settings, fed),
            tell=lambda report: shown(report.to_json()),
            note=lambda text: say(f"floe: {text}"),
        )
    _print_reports(_reports(fed), as_json=as_json)


def join(
    device: Annotated[
        str | None, typer.Option(help="This device's name; default: federated.device.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Its examples (JSONL); default: federated.data.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="The server's host:port; default: federated.address.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Default: by free memory, of federated.ranks.", min=1)
    ] = None,
    base: Annotated[str | None, typer.Option(help="Hugging Face folder or a model's name.")] = None,
    name: NameOption = None,
    show_key: Annotated[
        bool, typer.Option("--show-key", help="Print the line for the server's file and end.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Take part in rounds with this device's own examples, until stopped.

    Examples never leave the device; updates do, signed with a key that is made at the first call.

    Example: floe fed join --device clinic-a --data examples.jsonl --show-key
    """
    from floe.core.config import home
    from floe.core.errors import BadRequest

    settings = read_config(config, model=model)
    fed = _changed(
        settings, device=device, data=data and str(data), address=address, base=base, name=name
    )
    with _flower():
        from floe.assemble.federated import device_folder, device_key
        from floe.federated.conditions import Conditions, limits_of
        from floe.federated.examples import read_examples
        from floe.flower.processes import stay
    if not fed.device:
        raise BadRequest("give this device a name: --device NAME, or federated.device")
    folder = device_folder(fed, home=home())
    folder.mkdir(parents=True, exist_ok=True)
    line = f"{json.dumps(fed.device)} = {json.dumps(device_key(folder).public)}"
    if show_key:
        print(line)
        return
    if not fed.data:
        raise BadRequest("name this device's examples: --data FILE, or federated.data")
    read_examples(Path(fed.data))  # a file that cannot be used is told here, and not in a round
    if (reason := Conditions(limits=limits_of(fed)).obstacle()) is not None:
        say(f"floe: training will wait: {reason}")
    chosen, why = (rank, "as told") if rank else _rank(settings, fed)
    say(f"floe: {fed.device} joins {fed.address} at rank {chosen} ({why})")
    say(f"floe: the server's file of devices needs: {line}")
    try:
        with ended_by_exit():
            stay(
                dataclasses.replace(_app_settings(settings, fed), rank=chosen),
                tell=lambda text: say(f"floe: {text}"),
            )
    except KeyboardInterrupt:
        say("floe: leaving")


def report(
    name: NameOption = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the rounds so far say: who took part, who was refused and why, epsilon, bytes, clusters.

    Example: floe fed report --json
    """
    from floe.core.files import atomic_write
    from floe.federated.report_page import page

    fed = _changed(read_config(config), name=name)
    reports = _reports(fed)
    if html is not None:
        with atomic_write(html) as file:
            file.write(page(fed.name, reports).encode())
        say(f"wrote {html}")
    _print_reports(reports, as_json=as_json)


def _changed(settings: Config, **options: Any) -> FederatedConfig:
    """The table with the options that were given, checked again."""
    from floe.core.config_rules import check

    given = {key: value for key, value in options.items() if value is not None}
    fed = dataclasses.replace(settings.federated, **given)
    check(dataclasses.replace(settings, federated=fed))
    return fed


def _app_settings(settings: Config, fed: FederatedConfig) -> AppSettings:
    """Paths made absolute: Flower's processes run elsewhere."""
    from floe.core.config import home
    from floe.flower.settings import AppSettings

    files = ("data", "certificate", "certificate_key", "root_certificate", "node_key", "node_keys")
    there: dict[str, Any] = {n: _absolute(getattr(fed, n)) for n in (*files, "devices")}
    base = _absolute(fed.base) if Path(fed.base).expanduser().is_dir() else fed.base
    fed = dataclasses.replace(fed, **there, base=base)
    return AppSettings(home=str(home().absolute()), model=settings.model.name, federated=fed)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _rank(settings: Config, fed: FederatedConfig) -> tuple[int, str]:
    """The largest candidate that this device carries now, and by what that is known."""
    from floe.federated.plan import Limits, free_bytes, kept_table, preset_rank

    free = free_bytes()
    limits = Limits(memory_bytes=free, step_s=fed.step_limit_ms / 1e3 or None)
    table = kept_table(plan_file(), fed.base or settings.model.name, limits=limits)
    measured = {row.rank for row in table if row.fits} & set(fed.ranks)
    if table:
        return max(measured, default=min(fed.ranks)), "as measured by floe fed plan"
    limit = preset_rank(free)
    rank = max((r for r in fed.ranks if r <= limit), default=min(fed.ranks))
    return rank, f"by the rule of thumb for {free / 1e9:.1f} GB free; floe fed plan measures"


def _reports(fed: FederatedConfig) -> list[dict[str, Any]]:
    from floe.core.config import home
    from floe.core.errors import NotFound
    from floe.federated.report import read_reports

    folder = home() / "federated" / fed.name / "server"
    reports = read_reports(folder)
    if not reports:
        raise NotFound(f"no round of {fed.name!r} was held here yet; see: floe fed simulate")
    return reports


def _print_reports(reports: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    from floe.federated.report import totals

    if as_json:
        print(json.dumps({"rounds": reports, "totals": totals(reports)}))
        return
    for one in reports:
        print(_line(one))
        for cluster in one["clusters"]:
            unchanged = f"as it was: {cluster['why']}"
            state = f"rank {cluster['rank']}" if cluster["changed"] else unchanged
            print(f"    {cluster['cluster']}: {', '.join(cluster['clients'])} ({state})")
    total = totals(reports)
    spent = "" if total["epsilon"] is None else f", epsilon {total['epsilon']:.3g}"
    print(
        f"{total['rounds']} rounds, {total['accepted']} updates, {total['refused']} refused"
        f"{spent}, {total['bytes_up'] / 1e6:.1f} MB up, {total['bytes_down'] / 1e6:.1f} MB down"
    )


def _line(one: Mapping[str, Any]) -> str:
    """A round in one line."""
    text = f"round {one['round_number']}: {one['n_accepted']} of {one['n_selected']} updates"
    for what, by_reason in (
        ("refused", one["refused_by_reason"]),
        ("failed", one["failed_by_reason"]),
    ):
        if by_reason:
            text += f"; {what}: " + ", ".join(f"{n} {r}" for r, n in by_reason.items())
    loss = one["metrics"].get("train_loss_last")
    text += "" if loss is None else f"; training loss {loss:.3f}"
    return text + (f"; VOID: {one['void']}" if one["void"] else "")


@contextmanager
def _flower() -> Iterator[None]:
    """Say what to install where an import fails."""
    from floe.core.errors import Missing

    try:
        yield
    except ModuleNotFoundError as error:
        raise Missing(
            f"rounds need {error.name}: install it with pip install 'floe[fed,train]'"
        ) from error


@contextmanager
def _rounds_shown(rounds: int, *, quiet: bool) -> Iterator[Shown]:
    """A line on stderr for each round."""

    def shown(report: Mapping[str, Any]) -> None:
        if not quiet:
            say(f"floe: {_line(report)} (of {rounds})")

    yield shown
