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
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, cifar10, imdb, yelp, minilm or all. heart, landmine, vowel, exam and parkinsons cannot be "
            "downloaded: they are checked if they are here, otherwise it says how to get them"
        ),
    ],
    from_: Annotated[Path | None, typer.Option("--from", help="Look for the files in this folder first")] = None,
) -> None:
    """Download a data set, check it and convert it. If it is already here, check it byte by byte."""
    from focusfl.data import store
    from focusfl.data.sets import natural
    from focusfl.data.store import sources

    if name in natural.NATURAL:
        _check_natural(name, from_)
        return
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
    from focusfl.data.sets import natural

    table = Table("name", "description", "here", "size", box=None)
    for column in ("from", "folder"):
        table.add_column(column, overflow="fold")
    for row in store.list_datasets():
        here = "yes" if row.size else "damaged" if row.source else "no"
        table.add_row(row.name, row.description, here, _size(row.size), row.source or "-", str(row.path))
    for name, known in natural.NATURAL.items():
        root = natural.locate(name)
        here = "no" if root is None else "other files" if natural.describe_files(name, root) else "yes"
        size, folder = ("-", "-") if root is None else (_size(natural.folder_size(root)), str(root))
        table.add_row(name, known.description, here, size, known.published, folder)
    Console().print(table)


def _check_natural(name: str, folder: Path | None) -> None:
    """Say where a natural federation is; if it is not there, or has other files, say what to do."""
    from focusfl.data.sets import natural

    known, root = natural.NATURAL[name], natural.find(name, folder)
    if differ := natural.describe_files(name, root):
        raise InputError(f"{differ}. {known.manual_steps}")
    print(f"{name}: {_size(natural.folder_size(root))} in {root}; {known.published}; licence: {known.licence}")


def _print(status: CacheStatus) -> None:
    print(f"{status.name}: {_size(status.size)} in {status.path}, from {status.source}")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB" if size else "-"
