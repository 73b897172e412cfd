"""The page docs/results/bad.md: what the runs of the study of bad agents show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, median, stdev

from focusfl.report.markdown import grid
from focusfl.research.studies import runner
from focusfl.research.studies.bad_agents import (
    ALL_CASES,
    BAD_TURNS,
    BASELINE,
    CASES,
    FOCUS_VARIANTS,
    FREE_RIDERS,
    GOOD_TURNS,
    LYING,
    METHODS,
    ROUNDS,
    STUDY,
    Case,
)
from focusfl.research.studies.runner import Key, Row
from focusfl.run.result import identifying_options

MAX_POINTS_LOST = 0.5  # of accuracy: up to this the good agents count as unharmed


# Summary


class Outcome:
    """All runs of one method in one case, compared with the same method and seed without bad agents."""

    def __init__(self, method: str, case: Case, seeds: int, rows: dict[Key, Row]) -> None:
        self.method, self.case, self.seeds = method, case, seeds
        self.rows = [row for key, row in sorted(rows.items()) if key[:2] == (case.name, method)]
        self.baseline = {row["seed"]: row["acc"] for key, row in rows.items() if key[:2] == (BASELINE.name, method)}

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(row["acc"] is None for row in self.rows)

    @property
    def changes(self) -> list[float]:
        """The change of accuracy in points, one value per seed for which both runs are finished and finite."""
        pairs = [(row["acc"], self.baseline.get(row["seed"])) for row in self.rows]
        return [100 * (acc - before) for acc, before in pairs if acc is not None and before is not None]

    def values(self, measure: str) -> list[float]:
        """A measure of the runs that have it."""
        return [row[measure] for row in self.rows if row[measure] is not None]

    @property
    def unharmed(self) -> bool | None:
        """Whether the good agents lose at most MAX_POINTS_LOST; None if runs are missing."""
        if len(self.rows) < self.seeds or len(self.baseline) < self.seeds:
            return None
        return not self.diverged and bool(self.changes) and mean(self.changes) >= -MAX_POINTS_LOST


def median_deviation(outcomes: list[Outcome]) -> float | None:
    """The standard deviation of the changes over the seeds, as the median over methods and cases."""
    measured = [each for each in outcomes if each.case is not BASELINE and len(each.changes) > 1]
    return median(stdev(each.changes) for each in measured) if measured else None


# Page

INTRODUCTION = f"""# Bad agents

`focusfl study bad` wrote this page. What do {len(BAD_TURNS)} bad agents out of {len(GOOD_TURNS + BAD_TURNS)} do to
the {len(GOOD_TURNS)} good ones? The data are rotated digits with two true clusters, and every run has {ROUNDS}
rounds. All numbers are about the good agents, whose data are the same in every case. FOCUS, FOCUS-clip and
FOCUS-trim use `M = "auto"`, `init = "split"` and the `robust` option in their name. FOCUS-M3 uses M = 3. All other
methods use their default options.

Where updates are wrong, only the result of local training is wrong. If a method asks its agents for a further step
(FOCUS-clip and CGSV set the length of an update there), the bad agents take it too. They also report their true
losses and labels."""
ACCURACY = f"""The good agents' accuracy minus the accuracy of the same method and seed without the bad agents, in
percentage points. The column "{BASELINE.name}" shows that accuracy itself, in percent. All values are means over
all finished seeds. A gain can also mean that the method did poorly without the bad agents: with M = 3 some methods
split one of the two kinds of good agents there."""
EXCESS_RISK = """Loss minus best loss, where the best loss is that of a model trained on all data of the good agents
of one true cluster. Means over the good agents and the seeds."""
LIES = """The bad agents train honestly and then change what they send. The server checks every upload as the server
of a deployment does ([../trust.md](../trust.md)). The first number of a cell is the change of the good agents'
accuracy, as above; the second is how many of the liars' uploads were refused, in percent. A lie about something
that a method does not ask for (a share where there is one model, a loss where none is sent) leaves only the wrong
model."""
MAX_POINTS_LOST_TO_LIARS = 1.0  # of accuracy: up to this a method withstands a lie
CLUSTERS = """Number of runs in which the good agents are in their true clusters. An agent's cluster is the one with
its largest label. Only methods that assign labels are listed."""
DIVERGED = "Number of runs whose losses became infinite or undefined. They are not part of any mean above."


def write(results: Path, seeds: int, rows: dict[Key, Row]) -> Path:
    """Write bad.md and bad.json."""
    cases, methods = [case.name for case in ALL_CASES], list(METHODS)
    order = sorted(rows.values(), key=lambda r: (cases.index(r["case"]), methods.index(r["method"]), r["seed"]))
    return STUDY.write(results, seeds, order, markdown(seeds, rows))


def markdown(seeds: int, rows: dict[Key, Row]) -> str:
    """The page about these runs; `seeds` is the number of runs expected for every method and case."""
    outcomes = {(name, case.name): Outcome(name, case, seeds, rows) for name in METHODS for case in ALL_CASES}

    def table(
        cell: Callable[[Outcome], str], methods: Iterable[str] = tuple(METHODS), cases: tuple[Case, ...] = CASES
    ) -> str:
        lines = [[name, *(cell(outcomes[name, case.name]) for case in cases)] for name in methods]
        return grid(["method", *(case.name for case in cases)], lines)

    def methods_with(condition: Callable[[Outcome], object]) -> list[str]:
        return [name for name in METHODS if any(condition(outcomes[name, case.name]) for case in CASES)]

    every = list(outcomes.values())
    missing = sum(max(seeds - len(outcome.rows), 0) for outcome in every)
    parts = [INTRODUCTION, grid(["case", "the bad agents"], [[case.name, case.description] for case in CASES])]
    parts += runner.missing_note(missing, seeds * len(every))
    parts += ["## Accuracy", ACCURACY, table(_accuracy), _precision(every)]
    verdicts = [_verdict(name, [outcomes[name, case.name] for case in CASES[1:]]) for name in FOCUS_VARIANTS]
    parts += ["## FOCUS", "\n".join(f"- {verdict}" for verdict in verdicts)]
    parts += [_free_riders([outcomes[name, case.name] for case in FREE_RIDERS for name in FOCUS_VARIANTS])]
    lies = [[case.name, case.description] for case in LYING]
    parts += ["## Agents that lie", LIES, grid(["case", "the bad agents"], lies), table(_lied, cases=LYING)]
    parts += [_withstood(outcomes), _wronged(every)]
    parts += ["## Excess risk", EXCESS_RISK, table(lambda each: _mean(each.values("excess"), each, "z.3f"))]
    if labelled := methods_with(lambda each: each.values("ari")):
        parts += ["## Clusters", CLUSTERS, table(_correct_clusters, labelled)]
    if diverged := methods_with(lambda each: each.diverged):
        parts += ["## Diverged", DIVERGED, table(lambda each: f"{each.diverged} of {len(each.rows)}", diverged)]
    options = [
        [name, runner.options_text(identifying_options(method)) or "none"] for name, method in METHODS.items()
    ]
    parts += ["## Options", grid(["method", "options"], options), STUDY.source_note(rows.values())]
    return "\n\n".join(parts) + "\n"


def _accuracy(outcome: Outcome) -> str:
    if outcome.case is BASELINE:
        return _mean([100 * acc for acc in outcome.values("acc")], outcome, "z.1f")
    return _mean(outcome.changes, outcome, "+z.1f")


def _lied(outcome: Outcome) -> str:
    refused = [100 * share for share in outcome.values("refused")]
    return _accuracy(outcome) + (f" / {mean(refused):.0f} %" if refused else "")


def _withstood(outcomes: dict[tuple[str, str], Outcome]) -> str:
    """For each lie, the methods that withstand it; methods without runs are in neither column."""
    lines = []
    for case in LYING:
        measured = [outcomes[name, case.name] for name in METHODS if outcomes[name, case.name].rows]
        harmed = [
            each.method
            for each in measured
            if each.diverged or not each.changes or mean(each.changes) < -MAX_POINTS_LOST_TO_LIARS
        ]
        unharmed = [each.method for each in measured if each.method not in harmed]
        lines.append([case.name, ", ".join(unharmed) or "none", ", ".join(harmed) or "none"])
    return grid(
        ["lie", f"the good agents lose at most {MAX_POINTS_LOST_TO_LIARS:g} point", "they lose more"], lines
    )


def _wronged(outcomes: list[Outcome]) -> str:
    """How often an honest agent was refused."""
    rows = [row for each in outcomes if each.case in LYING for row in each.rows if row["wronged"] is not None]
    wronged, sent = sum(row["wronged"] for row in rows), len(rows) * ROUNDS * len(GOOD_TURNS)
    return f"Uploads of good agents that were refused: {wronged} of {sent}."


def _correct_clusters(outcome: Outcome) -> str:
    if not outcome.rows:
        return "missing"
    return f"{sum(ari == 1 for ari in outcome.values('ari'))} of {len(outcome.rows)}"


def _mean(values: list[float], outcome: Outcome, form: str) -> str:
    """The mean, and how many runs are not part of it."""
    if not values:
        return "diverged" if outcome.diverged else "missing"
    missing = max(outcome.seeds - len(values) - outcome.diverged, 0)
    return runner.with_notes(format(mean(values), form), missing, outcome.diverged)


def _precision(outcomes: list[Outcome]) -> str:
    """How precise the accuracies are."""
    n = len(BASELINE.federation(0).testing.y)
    both = [median_deviation(outcomes), median_deviation([o for o in outcomes if o.method in FOCUS_VARIANTS])]
    overall, focus = ("-" if sd is None else f"{sd:.1f}" for sd in both)
    return (
        f"The good agents have {n} test examples in total, so one example is worth {100 / n:.1f} points. "
        f"The standard deviation over the seeds is {overall} points in the median cell of the table, and "
        f"{focus} points in the median cell of the FOCUS rows. The standard error of a mean over S seeds is "
        "smaller by a factor of sqrt(S)."
    )


def _verdict(name: str, outcomes: list[Outcome]) -> str:
    """In which cases the good agents lose at most MAX_POINTS_LOST."""
    unharmed = [each.case.name for each in outcomes if each.unharmed]
    harmed = [f"{each.case.name} ({_accuracy(each)})" for each in outcomes if each.unharmed is False]
    missing = [each.case.name for each in outcomes if each.unharmed is None]
    text = f"{name}: the good agents lose at most {MAX_POINTS_LOST} points in {', '.join(unharmed) or 'no case'}"
    text += f"; they lose more in {', '.join(harmed)}" if harmed else ""
    return text + (f"; runs are missing for {', '.join(missing)}." if missing else ".")


def _free_riders(outcomes: list[Outcome]) -> str:
    """FOCUS against the two kinds of free riders, in more detail."""
    lines = []
    for each in outcomes:
        changes = each.changes
        error = f"{stdev(changes) / len(changes) ** 0.5:.1f}" if len(changes) > 1 else "-"
        worst = format(min(changes), "+z.1f") if changes else "-"
        verdict = {None: "missing", True: "yes", False: "no"}[each.unharmed]
        lines.append([each.case.name, each.method, _accuracy(each), error, worst, str(len(changes)), verdict])
    limit = f"loses at most {MAX_POINTS_LOST} on average"
    return grid(["free riders", "method", "points", "standard error", "worst seed", "seeds", limit], lines)
