"""What has been reproduced: one section for each table and figure, with the paper's numbers and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from focusfl.algorithms import title
from focusfl.report.rows import Number, Row, describe_error, read_row
from focusfl.report.section import Measurement, Section
from focusfl.research.paper.claims import judge
from focusfl.research.paper.differences import differences
from focusfl.research.paper.reproduction import SCALES, Reproduction, catalogue, load
from focusfl.research.paper.stored_results import cells_of
from focusfl.run.history import rounds_to
from focusfl.util import sealed
from focusfl.util.errors import InputError


def sections(results: Path) -> list[Section]:
    """Read every results file in a folder.

    Args:
        results: The folder that `focusfl reproduce` writes.

    Returns:
        One section per file, in the order of the paper, the small scale first.
    """
    found = []
    for name in catalogue():
        for scale in SCALES:
            path = results / f"{name}.{scale}.json"
            if path.exists():
                found.append(section(load(name, scale), read_page(path)))
    return found


class StoredPage(TypedDict):
    """What a results file of `focusfl reproduce` has: rows of runs, or a table of what was measured."""

    name: NotRequired[str]
    scale: NotRequired[str]
    rows: NotRequired[list[Any]]
    table: NotRequired[list[dict[str, str | int | Number | None]]]
    settings: NotRequired[dict[str, Any]]
    written_by: NotRequired[dict[str, Any]]


_PAGE = TypeAdapter(StoredPage)


def read_page(path: Path) -> dict[str, Any]:
    """Read a results file.

    Raises:
        InputError: It is not JSON, or a key or row is not what `focusfl reproduce` writes.
    """
    page = sealed.read_json(path)
    try:
        _PAGE.validate_python(page, strict=True)
    except ValidationError as error:
        advice = "delete the file and run focusfl reproduce again"
        raise InputError(f"{path}: {describe_error(error)}; {advice}") from error
    return {**page, "rows": [read_row(row, path) for row in page.get("rows", [])]}


def section(one: Reproduction, page: dict[str, Any]) -> Section:
    """Make the section of one table or figure.

    Args:
        one: The table or figure.
        page: Its results, as the file has them.

    Returns:
        The section.
    """
    rows = [_with_rounds_to(row, one) for row in page.get("rows", [])]
    have = {(row.get("part"), row["method"], row["seed"]) for row in rows}
    wanted = [(part.name, cell.method, cell.seed) for part, cell in cells_of(one)]
    missing = [", ".join(filter(None, [p, title(m), f"seed {s}"])) for p, m, s in wanted if (p, m, s) not in have]
    return Section(
        name=one.name,
        title=one.title,
        scale=one.scale,
        rows=rows,
        expect={(part.name, method): numbers for part in one.parts for method, numbers in part.expect.items()},
        deviations=one.deviations + _in_bf16(rows),
        claims=[judge(claim, rows, {p.name: p.experiment.methods for p in one.parts}) for claim in one.claims],
        differences=differences(one, rows),
        missing=missing,
        table=[_with_paper(line, one.printed) for line in page.get("table", [])],
        made={**page.get("written_by", {}), "settings": page.get("settings", {}), **_commits(rows)},
    )


def _in_bf16(rows: Sequence[Row]) -> list[str]:
    """Which methods were trained in bfloat16, because there is no result in float32."""
    names = dict.fromkeys(
        ": ".join(filter(None, [row.get("part"), title(row["method"])]))
        for row in rows
        if row.get("precision") == "bf16"
    )
    what = "local training multiplies in bfloat16, weights and sums stay float32"
    return [f"{what} ({', '.join(names)})"] if names else []


def _with_rounds_to(row: Row, one: Reproduction) -> Row:
    """With the rounds to the accuracies that the scale names, or to those that the paper has for this table."""
    seen = row.get("history")
    if one.goals and seen and seen["avg_acc"] is not None:
        rounds = [{"round": t, "avg_acc": acc} for t, acc in zip(seen["round"], seen["avg_acc"], strict=True)]
        return row | {"rounds_to": rounds_to(rounds, one.goals)}
    keys = {k for part in one.parts for numbers in part.expect.values() for k in numbers}
    paper = {goal: t for goal, t in (row.get("rounds_to") or {}).items() if f"rounds_{goal}" in keys}
    return row | {"rounds_to": paper} if paper else row


def _with_paper(line: Measurement, printed: list[Measurement]) -> Measurement:
    """With the paper's numbers, if it has any: those of its line with the same words and number of agents."""
    names = [k for k, v in line.items() if not isinstance(v, float)]
    paper = next((each for each in printed if all(each.get(k) == line[k] for k in names)), {})
    columns = [k for k in line if k not in names and any(k in each for each in printed)]
    return line | {f"{k}, paper": paper.get(k) for k in columns}


def _commits(rows: Sequence[Row]) -> dict[str, str]:
    """The commits that computed the rows: the file may have been written later."""
    found = dict.fromkeys(str(row.get("made", {}).get("commit") or "one not recorded") for row in rows)
    return {"commit": ", ".join(found)} if found else {}
