"""`floe fed certificates`: TLS and node keys for a federation, without openssl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from floe.cli.common import ConfigOption, read_config, say


def certificates(
    folder: Annotated[Path, typer.Argument(help="Where to write; run again to add devices.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server; again for more. Default: its address."),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="A device that may connect; again for more.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make what a network needs: an authority, a certificate for the server, keys for devices.

    Every machine has a folder of its own to be carried there. Files that exist are kept; with
    --host the server gets a new certificate. The authority's folder stays here.

    Example: floe fed certificates ./tls --host learn.example.org --device ward-3
    """
    from floe.core.errors import Missing

    try:
        from floe.flower.certificates import make_authority, make_device, make_server
    except ModuleNotFoundError as error:
        raise Missing(
            f"certificates need {error.name}: install it with pip install 'floe[fed]'"
        ) from error
    address = read_config(config).federated.address
    made = make_authority(folder)
    say(f"{'made' if made else 'kept'} {folder}/authority: keep it here, and secret")
    if host or not (folder / "server" / "server.crt").exists():
        hosts = host or [address.rpartition(":")[0]]
        make_server(folder, hosts)
        say(f"made {folder}/server: for {', '.join(hosts)}")
    for name in device or ():
        made = make_device(folder, name)
        say(f"{'made' if made else 'kept'} {folder}/{name}: carry it to this device, and nowhere")
    print("# at the server, whose folder is server/")
    for line in (
        'certificate = "server.crt"',
        'certificate_key = "server.key"',
        'root_certificate = "ca.crt"',
        'node_keys = "nodes"',
    ):
        print(line)
    print("# at a device, whose folder has its name")
    print('root_certificate = "ca.crt"\nnode_key = "node.key"')
