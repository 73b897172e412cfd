"""Which of our numbers differ from the paper's, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from focusfl.algorithms import title
from focusfl.report.rows import METRICS, Metric, Row, values
from focusfl.report.section import Difference
from focusfl.research.paper.reproduction import Reproduction

MAX_ACCURACY_GAP = 0.01  # up to which two accuracies count as the same
MAX_RELATIVE_GAP = 0.3  # up to which two losses, or two FAA, count as the same: a share of the paper's
PRINTED_PRECISION = 0.0005  # half of the last digit that the paper prints: a smaller gap cannot be seen
UNKNOWN_REASON = "Not explained"


def differences(one: Reproduction, rows: list[Row]) -> list[Difference]:
    """List the numbers that differ.

    Args:
        one: The table, with the paper's numbers and the known reasons.
        rows: Our runs.

    Returns:
        One entry per part and method. None at the small scale, whose settings are not the paper's.
    """
    if one.scale != "paper":
        return []
    found = []
    for part in one.parts:
        for method, paper in part.expect.items():
            runs = [row for row in rows if (row.get("part"), row["method"]) == (part.name, method)]
            if gaps := list(_gaps(runs, paper)):
                where = ": ".join(filter(None, [part.name, title(method)]))
                found.append(Difference(where, "; ".join(gaps), part.why.get(method, UNKNOWN_REASON)))
    return found


def differs(metric: Metric, ours: float, paper: float) -> bool:
    """Decide whether a number differs from the paper's by more than counts as the same.

    >>> differs("avg_acc", 0.95, 0.93), differs("faa", 0.12, 0.10), differs("faa", 0.14, 0.10)
    (True, False, True)
    >>> differs("faa", 0.0014, 0.001)  # the paper prints three digits
    False
    """
    allowed = MAX_ACCURACY_GAP if metric == "avg_acc" else MAX_RELATIVE_GAP * abs(paper)
    return abs(ours - paper) > max(allowed, PRINTED_PRECISION)


def _gaps(runs: list[Row], paper: dict[str, float]) -> Iterator[str]:
    for metric, heading in METRICS.items():
        ours = values(runs, metric)
        if ours and metric in paper and differs(metric, mean(ours), paper[metric]):
            yield f"{heading} {mean(ours):.3f} instead of {paper[metric]:.3f}"
