"""The runs of the study of FOCUS's starts."""

from __future__ import annotations

from pathlib import Path

from focusfl.fairness.metrics import adjusted_rand_index, agnostic_loss, average, excess_risk, faa
from focusfl.research.studies import keeping
from focusfl.research.studies.cases import Case
from focusfl.run.best_loss import Surrogates
from focusfl.run.history import rounds_to
from focusfl.run.training import Setup, labels, run

STUDY = "start"
Row = keeping.Row
MEASURES = ("ari", "since", "clusters", "loss", "worst", "acc", "faa")
Key = tuple[str, str, int]  # case, start, seed

_BEST = Surrogates()  # the starts of one case and seed share their best losses


def wanted(case: Case, seeds: int) -> list[Key]:
    return [(case.name, start, seed) for seed in range(case.seeds(seeds)) for start in case.starts]


def read(cells: Path, results: Path, cases: list[Case]) -> dict[Key, Row]:
    """The runs there are, of these cases."""
    settings = {case.name: case.settings for case in cases}
    return {
        (row["case"], row["start"], row["seed"]): row
        for row in keeping.read(STUDY, cells, results)
        if keeping.same(row, settings.get(row["case"]))
    }


def jobs(cases: list[Case], seeds: int, known: dict[Key, Row]) -> list[keeping.Job]:
    """The runs that are not known."""

    def job(case: Case, start: str, seed: int) -> keeping.Job:
        return keeping.Job(lambda step, stop: one(case, start, seed, step, stop), case.seconds)

    left = [(case, key) for case in cases for key in wanted(case, seeds) if key not in known]
    return [job(case, start, seed) for case, (_, start, seed) in left]


def one(
    case: Case,
    start: str,
    seed: int,
    step: keeping.Step = lambda share: None,
    stop: keeping.Stop = lambda: False,
) -> Row:
    """A run's row: its clusters, since which round they are right (None: not at the end), how good its models are.

    A run that diverges has no right clusters and no losses.
    """
    about = {"case": case.name, "start": start, "seed": seed, "settings": case.settings}
    return keeping.row_of(about, MEASURES, lambda: _measured(case.setup(start, seed), case.reach, step, stop))


def _measured(setup: Setup, reach: bool, step: keeping.Step, stop: keeping.Stop) -> Row:
    ari, since, found, scores = 0.0, None, 0, None
    seen: list[Row] = []
    for done in run(setup, eval_every=1 if reach else setup.rounds, stop=stop):
        pi = labels(setup.algorithm, done.server, done.states, setup.fed.E)
        assert pi is not None and setup.fed.clusters is not None
        group, scores = pi.argmax(1), done.scores
        ari, found = adjusted_rand_index(group, setup.fed.clusters), len(group.unique())
        since = (since or done.t) if ari == 1 else None
        if scores is not None and scores.acc is not None:
            seen.append({"round": done.t, "avg_acc": average(scores.acc)})
        step(done.t / setup.rounds)
    assert scores is not None
    row: Row = {"ari": round(ari, 6), "since": since, "clusters": found}
    row |= {"rounds_to": rounds_to(seen)} if reach else {}
    row |= {"loss": average(scores.loss), "worst": agnostic_loss(scores.loss)}
    row |= {"faa": faa(excess_risk(scores.loss, _BEST.best(setup, stop=stop).loss))}
    return row | {"acc": None if scores.acc is None else average(scores.acc)}
