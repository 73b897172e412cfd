"""focusfl data: what is here, and getting what is not. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import InputError, Interrupted

if TYPE_CHECKING:
    from focusfl.data.store import Here

app = typer.Typer(
    help="Data sets and text encoders: get them, list them.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="mnist, cifar10, imdb, yelp, minilm or all")],
    from_: Annotated[Path | None, typer.Option("--from", help="Look in this folder first")] = None,
) -> None:
    """Fetch a data set, check it and convert it. What is here already is checked byte by byte."""
    from focusfl.data import store
    from focusfl.data.store import sources

    failed = []
    for one in sources.DATASETS if name == "all" else [name]:
        try:
            sources.known(one)
            _print(store.get(one, from_))
        except InputError as error:
            if name != "all":
                raise
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            failed.append(one)
        except KeyboardInterrupt as stopped:
            raise Interrupted(f"{one}: stopped; nothing unfinished is left behind") from stopped
    if failed:
        raise InputError(f"not all: {', '.join(failed)} could not be had; the lines above say why")


@app.command("list")
def list_() -> None:
    """What is here, how big, where from, and where it lies."""
    from rich.console import Console
    from rich.table import Table

    from focusfl.data import store

    table = Table("name", "what", "here", "size", box=None)
    for column in ("from", "folder"):
        table.add_column(column, overflow="fold")
    for row in store.listing():
        here = "yes" if row.size else "damaged" if row.source else "no"
        table.add_row(row.name, row.what, here, _size(row.size), row.source or "-", str(row.path))
    Console().print(table)


def _print(row: Here) -> None:
    print(f"{row.name}: {_size(row.size)} in {row.path}, from {row.source}")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "-"
