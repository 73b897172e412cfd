"""What there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib

from rich.markup import escape
from rich.table import Table

from focusfl.algorithms import ALGORITHMS
from focusfl.data import DATA
from focusfl.experiments import catalogue


def algorithms() -> Table:
    table = Table("name", "what it does", "options and defaults", "paper")
    for name, kind in ALGORITHMS.items():
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        options = ", ".join(f"{f.name}={f.default}" for f in fields) or "-"
        table.add_row(name, _first_line(kind), options, kind.paper)
    return table


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
