"""focusfl data: list data sets and download them. Each command imports what is heavy only when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import InputError, Interrupted

if TYPE_CHECKING:
    from focusfl.data.store import CacheStatus

app = typer.Typer(
    help="List and download data sets and text encoders.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="mnist, cifar10, imdb, yelp, minilm or all")],
    from_: Annotated[Path | None, typer.Option("--from", help="Look for the files in this folder first")] = None,
) -> None:
    """Download a data set, check it and convert it. If it is already here, check it byte by byte."""
    from focusfl.data import store
    from focusfl.data.store import sources

    failed = []
    for dataset in sources.DATASETS if name == "all" else [name]:
        try:
            _print(store.get(dataset, from_))
        except InputError as error:
            if name != "all":
                raise
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            failed.append(dataset)
        except KeyboardInterrupt as stopped:
            raise Interrupted(f"{dataset}: interrupted; the unfinished download was removed") from stopped
    if failed:
        raise InputError(f"{', '.join(failed)} could not be downloaded; the lines above say why")


@app.command("list")
def list_() -> None:
    """List the data sets and whether they are here. Shows their size, source and folder."""
    from rich.console import Console
    from rich.table import Table

    from focusfl.data import store

    table = Table("name", "description", "here", "size", box=None)
    for column in ("from", "folder"):
        table.add_column(column, overflow="fold")
    for row in store.list_datasets():
        here = "yes" if row.size else "damaged" if row.source else "no"
        table.add_row(row.name, row.description, here, _size(row.size), row.source or "-", str(row.path))
    Console().print(table)


def _print(status: CacheStatus) -> None:
    print(f"{status.name}: {_size(status.size)} in {status.path}, from {status.source}")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size else "-"
