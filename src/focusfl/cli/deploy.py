"""focusfl deploy: set up a deployment, register its nodes, start runs. Heavy imports wait until a command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import InputError

if TYPE_CHECKING:
    from focusfl.deploy.registry import Node

app = typer.Typer(help="Train across machines.", no_args_is_help=True, rich_markup_mode=None)

DeploymentFolder = Annotated[Path, typer.Argument(help="The deployment's folder, written by init")]
OperatorFolder = Annotated[Path, typer.Argument(help="The operator's folder, or the deployment's folder")]
Nodes = Annotated[int, typer.Option(help="Number of nodes")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to create")],
    nodes: Nodes,
    host: Annotated[list[str], typer.Option(help="Name or IP address of the server; may be repeated")] = [],  # noqa: B006
    bind: Annotated[
        str | None,
        typer.Option(
            help="IP address that the server listens on  [default: all addresses; without --host, 127.0.0.1]"
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="How many days the certificates are valid")] = 730,
) -> None:
    """Create a deployment: certificates, keys and start scripts, in one folder per machine."""
    _require_flower()
    from focusfl.deploy import setup

    config = setup.init(folder, nodes, host, bind=bind, days=days)
    address = config.address(config.ports.node)
    print(f"Nodes will call {address}. {folder / 'README.txt'} says which folder belongs on which machine.")


@app.command()
def add(folder: DeploymentFolder, nodes: Nodes = 1) -> None:
    """Create folders for more nodes."""
    _require_flower()
    from focusfl.deploy import setup

    for path in setup.add(folder, nodes):
        print(path)


@app.command()
def replace(
    folder: DeploymentFolder, agent: Annotated[int, typer.Argument(help="The agent's number, for example 0")]
) -> None:
    """Create a node's folder again, with new keys; first remove nodes/agent-N."""
    _require_flower()
    from focusfl.deploy import setup

    print(setup.replace_node(folder, agent))


@app.command()
def renew(
    folder: DeploymentFolder,
    days: Annotated[
        int | None, typer.Option(help="How many days the certificates are valid  [default: as before]")
    ] = None,
) -> None:
    """Renew the certificates of the server and the operator."""
    _require_flower()
    from focusfl.deploy import setup

    setup.renew(folder, days)
    print(
        "Copy server/server.pem and server/operators.map to the server and operator/operator.pem to the operator's "
        "machine, then restart the SuperLink and the proxy."
    )


@app.command()
def register(folder: OperatorFolder) -> None:
    """Register all nodes whose public keys are in operator/nodes."""
    _require_flower()
    from focusfl.deploy import registry

    _print_nodes(registry.register(folder))


@app.command()
def nodes(folder: OperatorFolder) -> None:
    """List the nodes: which are registered, and which are online."""
    _require_flower()
    from focusfl.deploy import registry

    _print_nodes(registry.nodes(folder))


@app.command()
def revoke(
    folder: OperatorFolder, name: Annotated[str, typer.Argument(help="The node's name, for example agent-0")]
) -> None:
    """Revoke a node: the server refuses it from now on."""
    _require_flower()
    from focusfl.deploy import registry

    registry.revoke(folder, name)
    print(f"{name} is revoked.")


@app.command()
def run(
    folder: OperatorFolder,
    settings: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE, for example rounds=20; docs/flower.md lists the keys")
    ],
    stream: Annotated[bool, typer.Option(help="Show the server's log until the run ends")] = True,
) -> None:
    """Train. If the nodes have their own data, set at least agents, model and classes."""
    _require_flower()
    import tempfile

    from focusfl.deploy import flower_app, runs

    with tempfile.TemporaryDirectory(prefix="focusfl-app-") as temporary:
        app_folder = flower_app.write_app(Path(temporary), flower_app.parse_settings(settings))
        try:
            started = runs.submit(folder, app_folder)
            if stream:
                runs.follow(folder, started)
        except runs.RunFailed as why:
            print(f"error: {why}", file=sys.stderr)
            raise typer.Exit(1) from why


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def flwr(folder: OperatorFolder, context: typer.Context) -> None:
    """Run Flower's command line as the operator: focusfl deploy flwr FOLDER log RUN --stream"""
    _require_flower()
    from focusfl.deploy import operator

    raise typer.Exit(subprocess.run(operator.flwr_command(folder, *context.args)).returncode)


@app.command("app-hash")
def app_hash(
    folder: Annotated[
        Path | None, typer.Argument(help="A Flower app's folder  [default: the app of deploy run]")
    ] = None,
) -> None:
    """Print an app's hash, for a node's list of allowed apps. Settings do not change it."""
    _require_flower()
    import tempfile

    from focusfl.deploy import allowed_apps, flower_app

    with tempfile.TemporaryDirectory(prefix="focusfl-app-") as temporary:
        print(allowed_apps.folder_hash(folder or flower_app.write_files(Path(temporary), {})))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def supernode(
    allowed: Annotated[Path, typer.Argument(help="A file with the hashes of the allowed apps, one per line")],
    context: typer.Context,
) -> None:
    """Start a SuperNode that runs no app but those on a list: FILE, then the options of flower-supernode."""
    _require_flower()
    import os
    import sys

    from focusfl.deploy import allowed_apps

    allowed_apps.read_list(allowed)
    command = [sys.executable, "-P", "-m", "focusfl.deploy.allowed_apps", str(allowed), *context.args]
    os.execv(sys.executable, command)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def superlink(
    context: typer.Context,
    reply_mb: Annotated[int, typer.Option(help="Megabytes that any reply of a node may bring", min=0)] = 16,
) -> None:
    """Run the SuperLink with the arguments of flower-superlink; start-superlink.sh calls it."""
    _require_flower()
    from focusfl.deploy import superlink as flower

    flower.main(context.args, reply_mb)


def _print_nodes(nodes: list[Node]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("node", "id", "status", box=None)
    for node in nodes:
        table.add_row(Text(node.name), str(node.id or "-"), Text(node.status))  # not markup: the server sends it
    Console().print(table)


def _require_flower() -> None:
    from importlib.util import find_spec

    if not (find_spec("flwr") and find_spec("cryptography")):
        raise InputError("focusfl deploy needs Flower; install it with: pip install 'focusfl[flower]'")
