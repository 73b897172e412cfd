"""The study of FOCUS's starts as Markdown. A run that has not been made is missing, and says so."""

from __future__ import annotations

from pathlib import Path

from focusfl.report.markdown import grid
from focusfl.research.studies.cases import AUTO, PAPER, STARTS, Case
from focusfl.research.studies.runs import Key, Row, wanted
from focusfl.research.studies.summary import ACC, LOSS, Line, count, worse
from focusfl.run.history import GOALS
from focusfl.util import files
from focusfl.util.machine import provenance

ABOUT = """# The starts of FOCUS

Made by `focusfl study start`. How often does FOCUS end with the true clusters, from each of its starts? A run is
right if the adjusted Rand index of its labels and the true clusters is 1 after the last round."""
BEGUN = """M is the true number of clusters. Synthetic: R > 4r everywhere, first weights from N(0, 1). Digits and
MNIST (10 x 1000 images): torch's own first weights. "From round": the median round from which the clusters stay
right, of the runs that are right at the end; the warm-up of "split" counts. An agent's cluster is that of its
largest label, by however little. Accuracy, loss, the worst agent's loss and FAA (best losses exact, or surrogates
of the true clusters) are means over the seeds. Text: all reviews, frozen embeddings. CIFAR: 200 images an agent, a
ResNet-18 an eighth as wide."""
VERDICT = f"""No worse: as many right runs, an accuracy at most {ACC} lower, and a loss, a worst agent's loss and an
FAA at most {LOSS - 1:.0%} higher than the best of the other starts, each measure for itself."""
WARM = """The start "split:10" shares a model for ten of the 80 rounds. M is the true number of clusters."""
EXTRA = """The start "split+2" is told two clusters more than there are. "Right" counts runs whose clusters are the
true ones; groups cut in two are not, and may do no harm: see accuracy, losses and FAA."""
FULL = """Rotated MNIST at the paper's full setting (10 x 6000 images): the first round in which the agents' average
accuracy reaches each goal, the warm-up counted. The paper's FOCUS: {}."""
NUMBER = """Twelve agents; even: equal clusters; lone: each cluster but the first is a single agent. Digits: quarter
turns, the fifth and sixth cluster in a mirror. Of the runs, how many end with the true number of clusters, and how
many with the true clusters."""


def write(results: Path, cases: list[Case], seeds: int, known: dict[Key, Row]) -> Path:
    """start.md and start.json."""
    order = {case.name: i for i, case in enumerate(cases)}
    rows = sorted(known.values(), key=lambda row: (order[row["case"]], row["seed"], row["start"]))
    files.write_rows(results / "start.json", {"study": "start", "seeds": seeds, "written_by": provenance()}, rows)
    files.write_text(results / "start.md", markdown(cases, seeds, known))
    return results / "start.md"


def markdown(cases: list[Case], seeds: int, known: dict[Key, Row]) -> str:
    lines = [count(case, start, seeds, known) for case in cases for start in case.starts]
    starts = [line for line in lines if line.start in STARTS and not line.case.reach]
    auto = [line for line in lines if line.start == AUTO]
    more, warm = ([line for line in lines if mark in line.start] for mark in "+:")
    undone = sum(line.seeds - line.done for line in lines)
    parts = [ABOUT]
    parts += [f"Missing: {undone} of {sum(line.seeds for line in lines)} runs."] if undone else []
    parts += ["## Which start", BEGUN, _starts(starts), _totals(starts), VERDICT, _verdicts(starts)]
    parts += ['## How many clusters: M = "auto"', NUMBER, _auto(auto)]
    parts += ["## Superfluous clusters", EXTRA, _starts(more)]
    parts += ["## When to split", WARM, _starts(warm)]
    parts += ["## Rounds to an accuracy", FULL.format("/".join(map(str, PAPER))), _reached(cases, seeds, known)]
    parts += [
        "## Settings",
        "What is not named is the default of the data.",
        grid(["case", "settings"], [[case.name, _said(case)] for case in cases]),
    ]
    commits = sorted({str(row["commit"]) for row in known.values()})
    parts += [f"`start.json` has a row a run. Commits: {', '.join(commits) or 'none'} (+: with changes)."]
    return "\n\n".join(parts) + "\n"


def _starts(lines: list[Line]) -> str:
    cells = []
    for line in lines:
        scores = [_number(line.acc, ".3f")]
        scores += [_number(loss, ".4f") for loss in (line.loss, line.worst, line.faa)]
        cells.append([line.case.name, line.start, share(line.right, line), _number(line.since, ".3g"), *scores])
    return grid(["case", "start", "right", "from round", "accuracy", "loss", "worst loss", "FAA"], cells)


def _reached(cases: list[Case], seeds: int, known: dict[Key, Row]) -> str:
    """A line for each run of the full setting."""
    cells = []
    for case in (case for case in cases if case.reach):
        for key in wanted(case, seeds):
            goals = known[key]["rounds_to"] if key in known else None
            said = ["missing"] * len(GOALS) if goals is None else [str(goals[str(g)] or "-") for g in GOALS]
            cells.append([case.name, *map(str, key[1:]), *said])
    return grid(["case", "start", "seed", *(f"{g:.0%}" for g in GOALS)], cells)


def _totals(lines: list[Line]) -> str:
    """Over the cases in which no start misses a run: the same runs for all."""
    gaps = {line.case.name for line in lines if not line.whole}
    whole = [line for line in lines if line.case.name not in gaps]
    if not whole:
        return "No case is complete yet."
    said = []
    for start in STARTS:
        mine = [line for line in whole if line.start == start]
        said.append(f"{start} {sum(line.right for line in mine)} of {sum(line.done for line in mine)}")
    return f"Right, over the complete cases: {', '.join(said)}."


def _verdicts(lines: list[Line]) -> str:
    cells = []
    for name in dict.fromkeys(line.case.name for line in lines):
        split, *others = (line for line in lines if line.case.name == name)
        found = worse(split, others)
        cells.append([name, "missing" if found is None else f"no: {', '.join(found)}" if found else "yes"])
    return grid(["case", "split is no worse"], cells)


def _auto(lines: list[Line]) -> str:
    cells = []
    for line in lines:
        hits = [share(line.number, line), share(line.right, line)]
        cells.append([line.case.name, str(line.case.clusters), *hits])
    return grid(["case", "true number", "number right", "clusters right"], cells)


def share(hits: int, line: Line) -> str:
    """Of the runs there are; with how many are missing or diverged."""
    if not line.done:
        return "missing"
    notes = {"missing": line.seeds - line.done, "diverged": line.diverged}
    said = ", ".join(f"{n} {what}" for what, n in notes.items() if n)
    return f"{hits} of {line.done}" + (f" ({said})" if said else "")


def _said(case: Case) -> str:
    return ", ".join(f"{k} = {v}" for k, v in case.settings.items())


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
