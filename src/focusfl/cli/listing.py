"""focusfl list: the algorithms, the data sets and the experiments there are."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from focusfl.algorithms import ALGORITHMS, PRESETS, title
from focusfl.data import DATA
from focusfl.report.disclosure import disclosed
from focusfl.research.natural.benchmark import DESCRIPTION, NAME
from focusfl.run.experiment import catalogue
from focusfl.util.files import visible
from focusfl.util.plugins import entry_points

INSTALLED = "From an installed package; it is loaded only if you name it."


def algorithms() -> Group:
    """List the algorithms, one entry each: five columns would not fit a terminal."""
    entries: list[RenderableType] = []
    for name, kind in ALGORITHMS.items():
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        details = {
            "options": ", ".join(f"{f.name}={f.default}" for f in fields) or "none",
            "the server sees": disclosed(name),
            "paper": kind.paper,
        }
        entries.append(Text.assemble((name, "bold"), f"  {kind.name}. {_summary(kind)}"))
        entries += [Padding(Text(f"{key}: {value}"), (0, 0, 0, 4)) for key, value in details.items()]
    for name, make in PRESETS.items():
        options = ", ".join(f"{p.name}={p.default}" for p in inspect.signature(make).parameters.values())
        entries.append(Text.assemble((name, "bold"), f"  {title(name)}. {_summary(make)}"))
        entries += [Padding(Text(f"options: {options}"), (0, 0, 0, 4))]
    for name in entry_points("focusfl.algorithms"):
        entries.append(Text.assemble((visible(name), "bold"), f"  {INSTALLED}"))
    return Group(*entries)


def data() -> Table:
    """List the data sets with their options."""
    table = Table("name", "what it is", "options and defaults")
    for name, make in DATA.items():
        parameters = inspect.signature(make).parameters.values()
        options = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)
        table.add_row(name, escape(_summary(make)), escape(options))
    for name in entry_points("focusfl.data"):
        table.add_row(escape(visible(name)), INSTALLED, "")
    return table


def experiments() -> Table:
    """List the experiments that come with the package, or that are in ./experiments."""
    table = Table("name", "what it shows", "file")
    for name, path in catalogue().items():
        try:
            description = str(tomllib.loads(path.read_text(encoding="utf-8")).get("description", ""))
        except (OSError, ValueError) as error:
            description = f"cannot be read: {error}"
        table.add_row(name, escape(description), escape(str(path)))
    table.add_row(NAME, escape(DESCRIPTION), "built in")
    return table


def _summary(thing: object) -> str:
    """Return the first line of its docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]
