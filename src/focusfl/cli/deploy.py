"""focusfl deploy: set up a deployment, say who takes part. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import InputError

if TYPE_CHECKING:
    from focusfl.deploy.registry import Node

app = typer.Typer(help="Train across machines.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(help="The folder that init wrote")]
Desk = Annotated[Path, typer.Argument(help="The operator's folder, or the one that init wrote")]
Nodes = Annotated[int, typer.Option(help="How many")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder")],
    nodes: Nodes,
    host: Annotated[list[str], typer.Option(help="Name or IP address of the server; more may follow")] = [],  # noqa: B006
    bind: Annotated[str | None, typer.Option(help="Address to listen on. Default: all")] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold")] = 730,
) -> None:
    """Write certificates, keys, start scripts and configuration: a folder for each machine."""
    _installed()
    from focusfl.deploy import setup

    made = setup.init(folder, nodes, host, bind=bind, days=days)
    print(f"Nodes will call {made.address(made.ports.node)}. What goes where: {folder / 'README.txt'}")


@app.command()
def add(folder: Folder, nodes: Nodes = 1) -> None:
    """Write folders for more nodes."""
    _installed()
    from focusfl.deploy import setup

    for path in setup.add(folder, nodes):
        print(path)


@app.command()
def renew(folder: Folder, days: Annotated[int | None, typer.Option(help="Default: as before")] = None) -> None:
    """Sign the server's and the operator's certificates anew."""
    _installed()
    from focusfl.deploy import setup

    setup.renew(folder, days)
    print("Copy server/*.pem, server/operators.map and operator/*.pem to their machines; restart the server's two.")


@app.command()
def register(folder: Desk) -> None:
    """Register all nodes whose public keys are in operator/nodes."""
    _installed()
    from focusfl.deploy import registry

    _show(registry.register(folder))


@app.command()
def nodes(folder: Desk) -> None:
    """Who is registered, and who is there."""
    _installed()
    from focusfl.deploy import registry

    _show(registry.nodes(folder))


@app.command()
def revoke(folder: Desk, name: Annotated[str, typer.Argument(help="agent-0, for instance")]) -> None:
    """Shut a node out."""
    _installed()
    from focusfl.deploy import registry

    registry.revoke(folder, name)
    print(f"{name}: shut out")


@app.command()
def run(
    folder: Desk,
    change: Annotated[list[str], typer.Option("--set", help="KEY=VALUE, as in rounds=20 (docs/flower.md)")],
    stream: Annotated[bool, typer.Option(help="Show the server's log until the run ends")] = True,
) -> None:
    """Train. Say at least how many agents there are and what network they train."""
    _installed()
    import tempfile

    from focusfl.deploy import operator, running

    with tempfile.TemporaryDirectory(prefix="focusfl-app-") as place:
        made = running.write_app(Path(place), running.parse(change))
        words = ["run", str(made), operator.CONNECTION] + ["--stream"] * stream
        raise typer.Exit(subprocess.run(operator.command(folder, *words)).returncode)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def flwr(folder: Desk, context: typer.Context) -> None:
    """Flower's own command line as the operator: focusfl deploy flwr DIR log RUN --stream"""
    _installed()
    from focusfl.deploy import operator

    raise typer.Exit(subprocess.run(operator.command(folder, *context.args)).returncode)


def _show(rows: list[Node]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("node", "number", "status", box=None)
    for row in rows:
        table.add_row(row.name, str(row.id or "-"), row.status)
    Console().print(table)


def _installed() -> None:
    from importlib.util import find_spec

    if not (find_spec("flwr") and find_spec("cryptography")):
        raise InputError("deployment needs Flower; install it with: pip install 'focusfl[flower]'")
