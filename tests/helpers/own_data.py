"""Nodes with files of their own, described without any messages: sums are added up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focusfl.data.own.description import Description, Reading, Spread, describe
from focusfl.data.own.moments import total
from focusfl.data.own.node import OwnData, Pair, read_own_data
from focusfl.flower.protocol.describe import counted_of
from focusfl.flower.protocol.names import cells_for, read_names, table_of


def described(*nodes: OwnData) -> Description:
    """Return the description that these nodes' sums give."""
    form, reading = nodes[0].form, nodes[0].reading
    each = [node.counted(form.columns) for node in nodes]
    counted = counted_of({name: total(arrays[name] for arrays in each) for name in each[0]})
    asked = counted.named(reading, form)
    cells = cells_for([counted.occupied[j] for j in asked])
    tables = [table_of(node.names(form.columns, asked), cells) for node in nodes]
    each = [node.spread(form.columns, counted.means, counted.target_mean) for node in nodes]
    sums = {name: total(arrays[name] for arrays in each) for name in each[0]}
    spread = Spread(int(sums["n"]), sums["squares"], float(sums["target"]))
    return describe(reading, form, counted, spread, read_names(total(tables), len(nodes)))


def alone(path: Path, agent: str = "agent", max_mb: int = 512, **options: Any) -> Pair:
    """Return the data of a node that is the only one."""
    node = read_own_data(path, agent, Reading(**options), max_mb)
    return node.data(described(node))
