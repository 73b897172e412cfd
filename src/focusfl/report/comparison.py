"""Several runs on the same data, compared: in a notebook, as tables in the terminal, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console

from focusfl.algorithms import title
from focusfl.report.gains import Gains, compare_losses
from focusfl.report.html.notebook import comparison_card, faa_text
from focusfl.report.plot import figure
from focusfl.report.rows import Row, by_method
from focusfl.report.terminal import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 120  # characters of the tables


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same agents with the same seeds. Made by `result.against(...)` and `ff.compare`.

    Attributes:
        rows: The runs, as rows of results.json, method after method; the first method is compared with the others.
        history: The rounds of the first run, where they were kept: one list per quantity.
    """

    rows: Sequence[Row]
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)

    @property
    def gains(self) -> dict[str, Gains]:
        """Who gained and who lost under the first method, by the other's `method`."""
        first, *others = by_method(self.rows).values()
        found = {each[0]["method"]: compare_losses(first, each) for each in others}
        return {method: gains for method, gains in found.items() if gains is not None}

    @property
    def notes(self) -> list[str]:
        """What to know before the runs are compared, one sentence each."""
        if len({row["rounds"] for row in self.rows}) == 1:
            return []
        each = ", ".join(f"{title(row['method'])} {row['rounds']}" for row in self.rows)
        return [f"The runs have different numbers of rounds: {each}."]

    def plot(self) -> Figure:
        """Draw losses, curves and clusters of the first seed (see `Result.plot`)."""
        first, *others = [each[0] for each in by_method(self.rows).values()]
        return figure(first, others, self.history)

    def __str__(self) -> str:
        text = StringIO()
        show(list(self.rows), {}, Console(file=text, width=WIDTH, markup=False, emoji=False))
        return "".join([text.getvalue(), *(f"Note: {line}\n" for line in self.notes)])

    def __repr__(self) -> str:
        runs = [f"{title(row['method'])}: {faa_text(row)}" for row in self.rows]
        return f"Comparison({'; '.join(runs)})"

    def _repr_html_(self) -> str:
        return comparison_card(self.rows, self.gains, self.notes)
