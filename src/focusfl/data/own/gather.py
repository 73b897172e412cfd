"""Gather: read all files of a folder, decide what they hold, and find everything that is wrong with them at once.

A file that cannot be used is left out of the later steps, so that these find the problems of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from focusfl.data.own.contents import MAX_MB, FileContents
from focusfl.data.own.examples import aligned, usual
from focusfl.data.own.labels import (
    TargetOption,
    encode_labels,
    missing_label,
    refuse_amounts,
    require_different,
    with_labels,
)
from focusfl.data.own.layout import read_agent
from focusfl.data.own.numbers import looks_like_number
from focusfl.data.own.schema import DIFFERENT, MissingOption, Schema, infer, like_identifiers
from focusfl.data.own.table_files import simplified
from focusfl.util.errors import Problems, nearest
from focusfl.util.progress import count_progress

SECONDS_BEFORE_BAR = 2.0


@dataclass(frozen=True)
class ReadOptions:
    """How files are read; see `folder` for the options.

    Attributes:
        label: The label column.
        text: The text column.
        max_mb: What a compressed file may unpack to.
        drop: Columns to leave out.
        categorical: Columns that are categories.
        missing: What missing cells become.
        target: How labels are read.
    """

    label: str = "label"
    text: str = "text"
    max_mb: int = MAX_MB
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: MissingOption = "impute"
    target: TargetOption = "auto"


class Gathered(NamedTuple):
    """The files of all agents, ready to become tensors.

    Attributes:
        agents: For each agent its training and test file, or the one that holds both.
        y: The labels of each file, in the order of the agents.
        labels: The names of the classes, if the labels are words.
        schema: What the columns of tables are; None for other kinds.
        identifiers: Columns of numbers that may be identifiers.
    """

    agents: list[list[FileContents]]
    y: list[Tensor]
    labels: tuple[str, ...]
    schema: Schema | None
    identifiers: tuple[str, ...] = ()

    @property
    def parts(self) -> list[FileContents]:
        """All files, in the order of the agents."""
        return [part for agent in self.agents for part in agent]


def gather(places: Sequence[Path], root: Path, reading: ReadOptions, problems: Problems) -> Gathered:
    """Read all files.

    Args:
        places: The file or sub-folder of each agent.
        root: Links that lead out of this folder are refused.
        reading: How files are read.
        problems: What is wrong with the folder so far.

    Raises:
        InputError: Something cannot be used; the message has a line for everything that is wrong.
    """
    read = _read(places, root, reading, problems)
    if not read:
        problems.report()
    agents = _labelled(read, reading, problems)
    parts = [part for agent in agents for part in agent]
    y, labels = list[Tensor](), tuple[str, ...]()
    if parts:
        with problems.collect():
            y, labels = encode_labels(parts, reading.target)
            refuse_amounts(parts, reading.target)
    _check_dropped([part for agent in read for part in agent], reading, problems)
    first = usual(parts) if parts else None
    found = [[aligned(part, first, problems) for part in agent] for agent in agents if first is not None]
    sound = [[part for part in agent if part is not None] for agent in found]
    schema, identifiers = None, tuple[str, ...]()
    if first is not None and first.kind == "a table":
        with problems.collect():
            schema = infer([agent[0] for agent in sound if agent], (), reading.categorical, reading.missing)
    elif first is not None and reading.categorical:
        problems.add(
            f"data.categorical = {', '.join(reading.categorical)}: expected nothing: the files are {first.kind}"
        )
    if schema is not None:
        identifiers = like_identifiers(schema, [agent[0] for agent in sound if agent])
        _check_numbers_as_words(schema, [part for agent in sound for part in agent], reading, problems)
        for part in (part for agent, kept in zip(agents, found, strict=True) for part in _odd(agent, kept)):
            known = replace(schema, columns=tuple(c for c in schema.columns if c.name in part.columns))
            known.encode(part, problems)
        sound = [[replace(part, x=schema.encode(part, problems)) for part in agent] for agent in sound]
    problems.report()
    if schema is not None:
        require_different(root, labels)
    return Gathered(sound, y, labels, schema, identifiers)


def _read(places: Sequence[Path], root: Path, reading: ReadOptions, problems: Problems) -> list[list[FileContents]]:
    agents = []
    with count_progress("reading agents", len(places), delay=SECONDS_BEFORE_BAR) as advance:
        for place in places:
            with problems.collect():
                drop = reading.drop
                agents.append(read_agent(place, root, reading.label, reading.text, reading.max_mb, drop))
            advance(1)
    return agents


def _labelled(
    agents: list[list[FileContents]], reading: ReadOptions, problems: Problems
) -> list[list[FileContents]]:
    """Return the files without examples that have no label, and without agents that have too few."""
    is_gap = missing_label([part for agent in agents for part in agent])
    out = []
    for agent in agents:
        kept = []
        for part in agent:
            with problems.collect():
                kept.append(with_labels(part, is_gap) if reading.missing == "impute" and part.y else part)
        if len(kept) == len(agent) == 1 and len(kept[0].y) == 1:
            hint = "add more examples, or leave the agent out"
            problems.add(f"{kept[0].path}: 1 example cannot be split into training and test; {hint}")
        if len(kept) == len(agent):
            out.append(kept)
    return out


def _odd(agent: list[FileContents], kept: list[FileContents | None]) -> list[FileContents]:
    """Return the tables of an agent that have other columns than the rest, to look at those they share."""
    pairs = zip(agent, kept, strict=True)
    return [part for part, found in pairs if found is None and part.kind == "a table" and part.y]


def _check_dropped(parts: list[FileContents], reading: ReadOptions, problems: Problems) -> None:
    known = {name for part in parts for name in (*part.columns, *part.dropped)}
    gone = {simplified(name) for part in parts for name in part.dropped}
    kinds = {part.kind for part in parts}
    for name in (name for name in reading.drop if simplified(name) not in gone):
        if kinds & {"a table", "text"} and simplified(name) == simplified(reading.label):
            problems.add(f"data.drop: {name!r} is the label (data.label), which is no feature: leave it out here")
        elif kinds & {"a table", "text"}:
            problems.add(f"data.drop: no column {name!r}: {nearest(name, known)}")
        else:
            problems.add(f"data.drop = {name}: expected nothing: the files are {parts[0].kind}")


def _check_numbers_as_words(
    schema: Schema, parts: list[FileContents], reading: ReadOptions, problems: Problems
) -> None:
    """Find columns that would be left out, or be categories, though they hold numbers such as 1'000 or 12 %."""
    for column in schema.columns:
        if column.kind not in ("id", "text", "category") or column.name in reading.categorical:
            continue
        words = [
            (part, i, word) for part in parts for i, word in part.x.words[part.columns.index(column.name)].items()
        ]
        if words and sum(looks_like_number(word) for *_, word in words) >= DIFFERENT * len(words):
            part, i, word = words[0]
            hint = f"data.drop={column.name} leaves the column out, data.categorical={column.name} makes categories"
            problems.add(
                f"{part.at(i, column.name)}: {word!r} and others look like numbers: write them as 1234.5; {hint}"
            )
