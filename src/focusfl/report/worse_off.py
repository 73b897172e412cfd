"""Two plain numbers per method: how many agents are worse off than alone, and than under FedAvg."""

from __future__ import annotations

from focusfl.report.gains import MIN_RELATIVE_GAP, NOISE, compare_with_baselines, worse_off
from focusfl.report.rows import Runs

TITLE = f"Agents with a loss more than {100 * MIN_RELATIVE_GAP:g} % higher"
INTERVAL = ", with the 95 % interval of their number over the test examples"
HEADINGS = {"local": "worse than alone", "fedavg": "worse than under FedAvg"}
UNKNOWN = "-"


def heading(runs: Runs) -> str:
    """Return the heading of the table, which promises an interval only where noise is known.

    Args:
        runs: By the method's title.
    """
    everything = [row for rows in runs.values() for row in rows]
    found = [gains for rows in runs.values() if rows for gains in compare_with_baselines(rows, everything).values()]
    return TITLE + INTERVAL * any(gains.threshold == NOISE for gains in found)


def table(runs: Runs) -> tuple[list[str], list[list[str]]] | None:
    """Make the table.

    Args:
        runs: By the method's title.

    Returns:
        Headings and one line per method; None if no method can be compared with FedAvg or with training alone.
    """
    everything = [row for rows in runs.values() for row in rows]
    found = {name: compare_with_baselines(rows, everything) for name, rows in runs.items() if rows}
    shown = [baseline for baseline in HEADINGS if any(baseline in each for each in found.values())]
    if not shown:
        return None
    lines = []
    for name, each in found.items():
        cells = [str(worse_off(each[baseline])) if baseline in each else UNKNOWN for baseline in shown]
        lines.append([name, *cells])
    return ["method", *(HEADINGS[baseline] for baseline in shown)], lines
