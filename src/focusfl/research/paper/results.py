"""What has been reproduced: a section for each table and figure, with the paper's numbers and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focusfl.report.section import Section
from focusfl.report.tables import title
from focusfl.research.paper.claims import judge
from focusfl.research.paper.keeping import cells_of
from focusfl.research.paper.off import off
from focusfl.research.paper.reproduction import SCALES, Reproduction, catalogue, load
from focusfl.run.history import rounds_to
from focusfl.util import files

Row = dict[str, Any]


def sections(results: Path) -> list[Section]:
    """Of every results file there is, in the order of the paper, the small scale first."""
    found = []
    for name in catalogue():
        for scale in SCALES:
            path = results / f"{name}.{scale}.json"
            if path.exists():
                found.append(section(load(name, scale), files.read_json(path)))
    return found


def section(one: Reproduction, kept: dict[str, Any]) -> Section:
    rows = [_reaching(row, one) for row in kept.get("rows", [])]
    have = {(row["part"], row["method"], row["seed"]) for row in rows}
    wanted = [(part.name, cell.method, cell.seed) for part, cell in cells_of(one)]
    missing = [", ".join(filter(None, [p, title(m), f"seed {s}"])) for p, m, s in wanted if (p, m, s) not in have]
    return Section(
        name=one.name,
        title=one.title,
        scale=one.scale,
        rows=rows,
        expect={(part.name, method): numbers for part in one.parts for method, numbers in part.expect.items()},
        deviations=one.deviations + _fast(rows),
        claims=[judge(saying, rows, {p.name: p.experiment.methods for p in one.parts}) for saying in one.sayings],
        off=off(one, rows),
        missing=missing,
        table=[_beside(row, one.printed) for row in kept.get("table", [])],
        made={**kept.get("written_by", {}), "settings": kept.get("settings", {}), **_commit(rows)},
    )


def _fast(rows: list[Row]) -> list[str]:
    """Which of them were trained in bfloat16: they stand where there are none in float32."""
    found = dict.fromkeys(
        ": ".join(filter(None, [row["part"], title(row["method"])]))
        for row in rows
        if row.get("precision") == "bf16"
    )
    says = "local training multiplies in bfloat16, weights and sums stay float32"
    return [f"{says} ({', '.join(found)})"] if found else []


def _reaching(row: Row, one: Reproduction) -> Row:
    """With the rounds to the accuracies that the scale names, or to those that the paper has for this table."""
    seen, known = row.get("history"), row.get("rounds_to")
    if one.goals and seen and seen["avg_acc"] is not None:
        rounds = [{"round": t, "avg_acc": acc} for t, acc in zip(seen["round"], seen["avg_acc"], strict=True)]
        return row | {"rounds_to": rounds_to(rounds, one.goals)}
    keys = {k for part in one.parts for numbers in part.expect.values() for k in numbers}
    paper = {goal: t for goal, t in (known or {}).items() if f"rounds_{goal}" in keys}
    return row | {"rounds_to": paper} if paper else row


def _beside(row: Row, printed: list[Row]) -> Row:
    """With the paper's numbers, where it has any: those of its line of the same name and number of agents."""
    names = [k for k, v in row.items() if not isinstance(v, float)]
    paper = next((line for line in printed if all(line.get(k) == row[k] for k in names)), {})
    return row | {f"{k}, paper": paper.get(k) for k in row if any(k in line for line in printed) and k not in names}


def _commit(rows: list[Row]) -> dict[str, str]:
    """Those that computed the rows: the file may have been written later."""
    found = dict.fromkeys(row.get("made", {}).get("commit") or "one not recorded" for row in rows)
    return {"commit": ", ".join(found)} if found else {}
