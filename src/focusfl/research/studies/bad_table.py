"""The study of bad agents as Markdown. A run that has not been made is missing, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev

from focusfl.report.markdown import grid
from focusfl.research.studies.bad import BAD, CASES, FOCUS, GOOD, METHODS, RIDERS, ROUNDS, WITHOUT, Case
from focusfl.research.studies.bad_runs import STUDY, Key
from focusfl.research.studies.bad_summary import CLOSE, Runs, spread
from focusfl.research.studies.keeping import Row
from focusfl.run.result import lasting
from focusfl.util import files
from focusfl.util.machine import provenance

Of = Callable[[str, Case], Runs]  # the runs of a method in a case

ABOUT = f"""# Bad agents

Made by `focusfl study bad`. What do {len(BAD)} bad agents of {len(GOOD + BAD)} do to the {len(GOOD)} good ones?
Rotated digits in two true clusters, {ROUNDS} rounds. All numbers are of the good agents, whose data are the same in
every case. FOCUS, FOCUS-clip and FOCUS-trim: `M = "auto"`, `init = "split"`, `robust` as the name says; FOCUS-M3 is
told M = 3. The other methods have their default options.

Where updates are wrong it is local training that goes wrong: what a method has agents do after it (FOCUS-clip and
CGSV set the length of an update there), the bad ones do as well. They also tell their true losses and labels."""
LOST = f"""The good agents' accuracy minus that of the same method and seed without the bad agents, in points; the
column "{WITHOUT.name}" has the accuracy there, in percent. Means over all seeds there are. A gain may also mean
that the method was poor without them: with M = 3 some part one of the two kinds of good agents there."""
EXCESS = """Loss minus the best loss: that of a model trained on all data of the good agents of a true cluster.
Means over the good agents and the seeds."""
RIGHT = """Runs in which the good agents are in their true clusters, by their largest labels; of the methods that
have labels."""
DIVERGED = "Runs that left the finite numbers. They count in no mean above."


def write(results: Path, seeds: int, known: dict[Key, Row]) -> Path:
    """bad.md and bad.json."""
    cases, methods = [case.name for case in CASES], list(METHODS)
    rows = sorted(known.values(), key=lambda r: (cases.index(r["case"]), methods.index(r["method"]), r["seed"]))
    files.write_rows(results / f"{STUDY}.json", {"study": STUDY, "seeds": seeds, "written_by": provenance()}, rows)
    files.write_text(results / f"{STUDY}.md", markdown(seeds, known))
    return results / f"{STUDY}.md"


def markdown(seeds: int, known: dict[Key, Row]) -> str:
    def of(method: str, case: Case) -> Runs:
        return Runs(method, case, seeds, known)

    every = [of(method, case) for method in METHODS for case in CASES]
    undone = sum(max(seeds - len(runs.rows), 0) for runs in every)
    parts = [ABOUT, grid(["case", "the bad agents"], [[case.name, case.says] for case in CASES])]
    parts += [f"Missing: {undone} of {seeds * len(every)} runs."] if undone else []
    parts += ["## Accuracy", LOST, _table(of, _points), _noise(every)]
    parts += [
        "## FOCUS",
        "\n".join(f"- {_verdict(name, [of(name, case) for case in CASES[1:]])}" for name in FOCUS),
    ]
    parts += [_riders(of), "## Excess risk", EXCESS, _table(of, _excess)]
    labelled = [name for name in METHODS if any(of(name, case).values("ari") for case in CASES)]
    parts += ["## Clusters", RIGHT, _table(of, _right, labelled)] if labelled else []
    if any(runs.diverged for runs in every):
        gone = [name for name in METHODS if any(of(name, case).diverged for case in CASES)]
        parts += ["## Diverged", DIVERGED, _table(of, lambda runs: f"{runs.diverged} of {len(runs.rows)}", gone)]
    parts += ["## Options", grid(["method", "options"], [[name, _options(name)] for name in METHODS])]
    commits = sorted({str(row["commit"]) for row in known.values()})
    parts += [f"`{STUDY}.json` has a row a run. Commits: {', '.join(commits) or 'none'} (+: with changes)."]
    return "\n\n".join(parts) + "\n"


def _table(of: Of, said: Callable[[Runs], str], methods: Iterable[str] = tuple(METHODS)) -> str:
    lines = [[name, *(said(of(name, case)) for case in CASES)] for name in methods]
    return grid(["method", *(case.name for case in CASES)], lines)


def _points(runs: Runs) -> str:
    if runs.case is WITHOUT:
        return _said([100 * acc for acc in runs.values("acc")], runs, "z.1f")
    return _said(runs.lost, runs, "+z.1f")


def _excess(runs: Runs) -> str:
    return _said(runs.values("excess"), runs, "z.3f")


def _right(runs: Runs) -> str:
    return f"{sum(ari == 1 for ari in runs.values('ari'))} of {len(runs.rows)}" if runs.rows else "missing"


def _said(values: list[float], runs: Runs, form: str) -> str:
    """The mean; with how many runs are not in it."""
    if not values:
        return "diverged" if runs.diverged else "missing"
    notes = {"missing": max(runs.seeds - len(values) - runs.diverged, 0), "diverged": runs.diverged}
    said = ", ".join(f"{n} {what}" for what, n in notes.items() if n)
    return format(mean(values), form) + (f" ({said})" if said else "")


def _noise(every: list[Runs]) -> str:
    """How much the seeds differ."""
    both = [spread(every), spread([runs for runs in every if runs.method in FOCUS])]
    all_rows, ours = ("-" if sd is None else f"{sd:.1f}" for sd in both)
    says = f"The standard deviation over the seeds is {all_rows} points in the median cell, {ours} in that of FOCUS"
    n = len(WITHOUT.federation(0).testing.y)
    one = f"The good agents have {n} test examples together, so one of them is {100 / n:.1f} points."
    return f"{one} {says}; that of a mean over S seeds is smaller by the square root of S."


def _verdict(name: str, cases: list[Runs]) -> str:
    """In which cases the good agents lose no more than CLOSE."""
    close = [runs.case.name for runs in cases if runs.close]
    beyond = [f"{runs.case.name} ({_points(runs)})" for runs in cases if runs.close is False]
    said = f"{name} loses at most {CLOSE} points in {', '.join(close) or 'no case'}"
    said += f"; more in {', '.join(beyond)}" if beyond else ""
    missing = [runs.case.name for runs in cases if runs.close is None]
    return said + (f"; missing: {', '.join(missing)}." if missing else ".")


def _riders(of: Of) -> str:
    """The two kinds of free riders."""
    lines = []
    for case in RIDERS:
        for name in FOCUS:
            runs = of(name, case)
            worst = format(min(runs.lost), "+z.1f") if runs.lost else "-"
            verdict = {None: "missing", True: "yes", False: "no"}[runs.close]
            error = f"{stdev(runs.lost) / len(runs.lost) ** 0.5:.1f}" if len(runs.lost) > 1 else "-"
            lines.append([case.name, name, _points(runs), error, worst, str(len(runs.lost)), verdict])
    head = [
        "free riders",
        "method",
        "points",
        "standard error",
        "worst seed",
        "seeds",
        f"mean loses at most {CLOSE}",
    ]
    return grid(head, lines)


def _options(method: str) -> str:
    return ", ".join(f"{k} = {v}" for k, v in lasting(METHODS[method]).items()) or "none"
