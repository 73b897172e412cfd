"""The runs of the study of bad agents: what becomes of the good ones."""

from __future__ import annotations

from pathlib import Path

import torch

from focusfl.algorithms import Local
from focusfl.fairness.metrics import adjusted_rand_index, agnostic_loss, average, excess_risk
from focusfl.research.studies import keeping
from focusfl.research.studies.bad import CASES, GOOD, METHODS, SECONDS, WITHOUT, Case, settings
from focusfl.research.studies.keeping import Row
from focusfl.run.best_loss import Surrogates
from focusfl.run.fit import with_clusters
from focusfl.run.training import Setup, evaluate, labels, run
from focusfl.util.errors import Diverged
from focusfl.util.progress import RunProgress

STUDY = "bad"
MEASURES = ("acc", "worst", "loss", "excess", "largest", "ari", "groups")
Key = tuple[str, str, int]  # case, method, seed


def read(cells: Path, results: Path) -> dict[Key, Row]:
    """The runs there are, with the settings of today."""
    today = {(case.name, method): settings(case, method) for case in CASES for method in METHODS}
    return {
        (row["case"], row["method"], row["seed"]): row
        for row in keeping.read(STUDY, cells, results)
        if keeping.same(row, today.get((row["case"], row["method"])))
    }


def jobs(cases: list[Case], methods: list[str], seeds: int, known: dict[Key, Row]) -> list[keeping.Job]:
    """The runs that are not known, seed after seed."""
    best = Surrogates()

    def job(case: Case, method: str, seed: int) -> keeping.Job:
        return keeping.Job(lambda step, stop: one(case, method, seed, best, step, stop), SECONDS)

    wanted = [(case, method, seed) for seed in range(seeds) for case in cases for method in methods]
    return [job(*one) for one in wanted if (one[0].name, *one[1:]) not in known]


def one(
    case: Case,
    method: str,
    seed: int,
    best: Surrogates,
    step: keeping.Step = lambda share: None,
    stop: keeping.Stop = lambda: False,
) -> Row:
    """A run's row: how good the good agents' models are, their excess risk, and are their clusters right?

    A run that diverges has none of it.
    """
    about = {"case": case.name, "method": method, "seed": seed, "settings": settings(case, method)}
    setup = case.setup(METHODS[method], seed)
    return keeping.row_of(about, MEASURES, lambda: _measured(setup, best, step, stop))


def _measured(setup: Setup, best: Surrogates, step: keeping.Step, stop: keeping.Stop) -> Row:
    """Of the good agents alone; `groups`, the largest label of each agent, is of all."""
    with RunProgress(False) as bars:
        setup = with_clusters(setup, bars, stop=stop)
    for done in run(setup, eval_every=0, stop=stop):
        step(done.t / setup.rounds)
    good = slice(len(GOOD))
    loss, acc = evaluate(setup, done.server, done.states)
    pi = labels(setup.algorithm, done.server, done.states, setup.fed.E)
    assert acc is not None and setup.fed.clusters is not None
    if not torch.isfinite(loss[good]).all():
        raise Diverged("a good agent's loss is not finite")
    alone = Setup.of(Local(), WITHOUT.federation(setup.seed), setup.rounds, seed=setup.seed)
    excess = excess_risk(loss[good], best.best(alone, "true", stop=stop).loss)
    row: Row = {"acc": average(acc[good]), "worst": acc[good].min().item(), "loss": average(loss[good])}
    row |= {"excess": average(excess), "largest": agnostic_loss(excess), "ari": None, "groups": None}
    if pi is None:
        return row
    group = pi.argmax(1)
    return row | {"ari": adjusted_rand_index(group[good], setup.fed.clusters[good]), "groups": group.tolist()}
