"""What there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from focusfl.algorithms import ALGORITHMS
from focusfl.data import DATA
from focusfl.report.tells import tells
from focusfl.run.experiment import catalogue


def algorithms() -> Group:
    """An entry for each: five columns would not fit a terminal."""
    entries: list[RenderableType] = []
    for name, kind in ALGORITHMS.items():
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        lines = {
            "options": ", ".join(f"{f.name}={f.default}" for f in fields) or "none",
            "the server sees": tells(name),
            "paper": kind.paper,
        }
        entries.append(Text.assemble((name, "bold"), f"  {kind.name}. {_first_line(kind)}"))
        entries += [Padding(Text(f"{what}: {said}"), (0, 0, 0, 4)) for what, said in lines.items()]
    return Group(*entries)


def data() -> Table:
    table = Table("name", "what it is", "options and defaults")
    for name, make in DATA.items():
        parameters = inspect.signature(make).parameters.values()
        options = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)
        table.add_row(name, escape(_first_line(make)), escape(options))
    return table


def experiments() -> Table:
    table = Table("name", "what it shows", "file")
    for name, path in catalogue().items():
        try:
            said = str(tomllib.loads(path.read_text(encoding="utf-8")).get("description", ""))
        except (OSError, ValueError) as error:
            said = f"cannot be read: {error}"
        table.add_row(name, escape(said), escape(str(path)))
    return table


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]
