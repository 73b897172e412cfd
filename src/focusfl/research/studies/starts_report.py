"""The page docs/results/start.md: what the runs of the study of FOCUS's starts show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from focusfl.report.markdown import grid
from focusfl.research.studies import runner
from focusfl.research.studies.runner import Key, Row
from focusfl.research.studies.starts import AUTO, STARTS, STUDY, Case
from focusfl.run.history import GOALS

PAPER_ROUNDS = (9, 16, 20, 29)  # rounds in which the paper's FOCUS reaches 70, 80, 85 and 90 % on rotated MNIST
MAX_ACCURACY_DROP = 0.005  # a start counts as no worse if its accuracy is lower by at most this ...
MAX_LOSS_RATIO = 1.02  # ... and its losses are higher by at most this factor


# Summary


@dataclass(frozen=True)
class Summary:
    """All runs of one start in one case. A mean or median is None if no run has the value."""

    case: Case
    start: str
    finished: int  # runs
    planned: int  # runs
    correct: int  # runs that end with the true clusters
    correct_number: int  # runs that end with the true number of clusters
    since: float | None  # median round from which the clusters are correct, over the correct runs
    acc: float | None
    loss: float | None
    worst: float | None  # the worst agent's loss
    faa: float | None
    diverged: int

    @property
    def complete(self) -> bool:
        return self.finished == self.planned

    def share(self, runs: int) -> str:
        """So many of the finished runs, and how many are missing or diverged."""
        if not self.finished:
            return "missing"
        return runner.with_notes(f"{runs} of {self.finished}", self.planned - self.finished, self.diverged)


def summarise(case: Case, start: str, seeds: int, rows: dict[Key, Row]) -> Summary:
    """Summarise the runs of one start in one case."""
    planned = case.seeds(seeds)
    finished = [rows[case.name, start, seed] for seed in range(planned) if (case.name, start, seed) in rows]

    def over_runs(statistic: Callable[[list[Any]], float], measure: str) -> float | None:
        values = [row[measure] for row in finished if row[measure] is not None]
        return statistic(values) if values else None

    return Summary(
        case,
        start,
        finished=len(finished),
        planned=planned,
        correct=sum(row["ari"] == 1 for row in finished),
        correct_number=sum(row["clusters"] == case.clusters for row in finished),
        since=over_runs(median, "since"),
        acc=over_runs(mean, "acc"),
        loss=over_runs(mean, "loss"),
        worst=over_runs(mean, "worst"),
        faa=over_runs(mean, "faa"),
        diverged=sum(row["loss"] is None for row in finished),
    )


def worse_in(one: Summary, others: list[Summary]) -> list[str] | None:
    """In which measures a start is worse than the best of the others; None if runs are missing."""
    if not (one.complete and all(other.complete for other in others)):
        return None

    def higher(measure: str) -> bool:
        value, rest = getattr(one, measure), [getattr(other, measure) for other in others]
        best = min((other for other in rest if other is not None), default=None)
        return best is not None and (value is None or value > MAX_LOSS_RATIO * best)

    worse = ["correct runs"] if one.correct < max(other.correct for other in others) else []
    best = max((other.acc for other in others if other.acc is not None), default=None)
    if best is not None and (one.acc is None or one.acc < best - MAX_ACCURACY_DROP):
        worse.append("accuracy")
    return worse + [
        name for measure, name in (("loss", "loss"), ("worst", "worst loss"), ("faa", "FAA")) if higher(measure)
    ]


# Page

INTRODUCTION = """# The starts of FOCUS

`focusfl study start` wrote this page. How often does FOCUS end with the true clusters, from each of its starts? A
run is correct if, after the last round, the adjusted Rand index of its clusters and the true clusters is 1. An
agent's cluster is the one with its largest label, however small the margin."""
START_CASES = """M is the true number of clusters. The synthetic cases have R > 4r and draw the first weights from
N(0, 1). Digits and MNIST (10 agents with 1000 images each) use torch's default first weights. "Text" uses all
reviews and frozen embeddings. "CIFAR" has 200 images per agent and a ResNet-18 with an eighth of the usual width.
"Correct since round" is the median round from which the clusters stay correct, over the runs that end with correct
clusters; it includes the warm-up of "split". Accuracy, loss, the worst agent's loss and FAA are means over the
seeds. The best losses in FAA are exact where they are known, and otherwise those of surrogates trained on the true
clusters."""
NO_WORSE = f"""The start "split" is no worse than the others if it has as many correct runs as the best of them, an
accuracy at most {MAX_ACCURACY_DROP} lower, and a loss, a worst agent's loss and an FAA at most
{MAX_LOSS_RATIO - 1:.0%} higher. The best of the other starts is chosen for each measure separately."""
NUMBER = """Twelve agents each. "Even" cases have clusters of equal size; in "lone" cases every cluster but the
first is a single agent. The digits differ by quarter turns; the fifth and the sixth cluster are mirrored as well.
The table shows how many runs end with the true number of clusters, and how many with the true clusters."""
EXTRA = """The start "split+2" gets an M that is two larger than the true number of clusters. A run in which a true
cluster is split in two does not count as correct, although it may do no harm: see accuracy, losses and FAA."""
WARMUP = """The start "split:10" trains one shared model in the first 10 of 80 rounds. M is the true number of
clusters."""
FULL = """Rotated MNIST at the paper's full size (10 agents with 6000 images each): the first round in which the
agents' average accuracy reaches each goal. The warm-up is included. The paper's FOCUS needs {} rounds."""


def write(results: Path, cases: list[Case], seeds: int, rows: dict[Key, Row]) -> Path:
    """Write start.md and start.json."""
    order = {case.name: i for i, case in enumerate(cases)}
    ordered = sorted(rows.values(), key=lambda row: (order[row["case"]], row["seed"], row["start"]))
    return STUDY.write(results, seeds, ordered, markdown(cases, seeds, rows))


def markdown(cases: list[Case], seeds: int, rows: dict[Key, Row]) -> str:
    """The page about these runs; `seeds` is the number of runs requested for every case and start."""
    summaries = [summarise(case, start, seeds, rows) for case in cases for start in case.starts]
    starts = [each for each in summaries if each.start in STARTS and not each.case.evaluate_every_round]
    auto = [each for each in summaries if each.start == AUTO]
    extra, warmup = ([each for each in summaries if mark in each.start] for mark in "+:")
    parts = [INTRODUCTION]
    parts += runner.missing_note(
        sum(each.planned - each.finished for each in summaries), sum(each.planned for each in summaries)
    )
    parts += ["## Which start", START_CASES, _table(starts), _totals(starts), NO_WORSE, _verdicts(starts)]
    parts += ['## How many clusters: M = "auto"', NUMBER, _auto_table(auto)]
    parts += ["## Superfluous clusters", EXTRA, _table(extra)]
    parts += ["## When to split", WARMUP, _table(warmup)]
    paper = "/".join(map(str, PAPER_ROUNDS))
    parts += ["## Rounds to an accuracy", FULL.format(paper), _rounds_table(cases, seeds, rows)]
    parts += ["## Settings", "All other settings are the defaults of the data set."]
    parts += [grid(["case", "settings"], [[case.name, runner.options_text(case.settings)] for case in cases])]
    return "\n\n".join([*parts, STUDY.source_note(rows.values())]) + "\n"


def _table(summaries: list[Summary]) -> str:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    lines = []
    for each in summaries:
        scores = [number(each.acc, ".3f")] + [number(loss, ".4f") for loss in (each.loss, each.worst, each.faa)]
        lines.append([each.case.name, each.start, each.share(each.correct), number(each.since, ".3g"), *scores])
    head = ["case", "start", "correct runs", "correct since round", "accuracy", "loss", "worst loss", "FAA"]
    return grid(head, lines)


def _totals(summaries: list[Summary]) -> str:
    """The correct runs of each start, over the cases that are complete for all starts."""
    incomplete = {each.case.name for each in summaries if not each.complete}
    complete = [each for each in summaries if each.case.name not in incomplete]
    if not complete:
        return "No case is complete yet."
    totals = []
    for start in STARTS:
        same = [each for each in complete if each.start == start]
        totals.append(f"{start} {sum(each.correct for each in same)} of {sum(each.finished for each in same)}")
    return f"Correct runs over all complete cases: {', '.join(totals)}."


def _verdicts(summaries: list[Summary]) -> str:
    lines = []
    for name in dict.fromkeys(each.case.name for each in summaries):
        split, *others = (each for each in summaries if each.case.name == name)
        worse = worse_in(split, others)
        lines.append([name, "missing" if worse is None else f"no: {', '.join(worse)}" if worse else "yes"])
    return grid(["case", "split is no worse"], lines)


def _auto_table(summaries: list[Summary]) -> str:
    lines = [
        [each.case.name, str(each.case.clusters), each.share(each.correct_number), each.share(each.correct)]
        for each in summaries
    ]
    return grid(["case", "true number", "correct number", "correct clusters"], lines)


def _rounds_table(cases: list[Case], seeds: int, rows: dict[Key, Row]) -> str:
    """One line per run of the cases that are evaluated in every round."""
    lines = []
    for key in (key for case in cases if case.evaluate_every_round for key in case.runs(seeds)):
        reached = rows[key]["rounds_to"] if key in rows else None
        rounds = ["missing"] * len(GOALS) if reached is None else [str(reached[str(g)] or "-") for g in GOALS]
        lines.append([*map(str, key), *rounds])
    return grid(["case", "start", "seed", *(f"{g:.0%}" for g in GOALS)], lines)
