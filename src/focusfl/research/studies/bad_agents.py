"""What do bad agents do to the good ones? Seven good agents of two kinds, and three that are useless or harmful."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from focusfl.algorithms import (
    AFL,
    CFL,
    CGSV,
    IFCA,
    QFFL,
    Ditto,
    FedAvg,
    FedEM,
    FedProx,
    FedSoft,
    FeSEM,
    Focus,
    HardCluster,
    Local,
)
from focusfl.core import Algorithm
from focusfl.data import rotated_digits
from focusfl.data.federation import Federation, Rows
from focusfl.data.shift import SHIFTS
from focusfl.engines import audit
from focusfl.fairness.metrics import adjusted_rand_index, agnostic_loss, average, excess_risk
from focusfl.research.studies import runner
from focusfl.research.studies.attack import Attacked
from focusfl.research.studies.lies import LIES, LyingAgents
from focusfl.research.studies.runner import Job, Key, Row, Study
from focusfl.run.best_loss import Surrogates
from focusfl.run.fit import after_prerequisite
from focusfl.run.loop import run
from focusfl.run.result import identifying_options
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError
from focusfl.util.progress import RunProgress

STUDY = Study("bad", variant="method")
GOOD_TURNS, BAD_TURNS = (0, 0, 0, 0, 1, 1, 1), (0, 1, 0)  # quarter turns of each good and each bad agent's digits
ROUNDS = 40
SECONDS_PER_RUN = 1.5  # on one core, for the progress bar
MEASURES = ("acc", "worst", "loss", "excess", "largest", "ari", "groups")


# Cases and methods


@dataclass(frozen=True)
class Case:
    """What is wrong with the bad agents.

    Args:
        name: the name of the case.
        description: what the bad agents are like, for the page.
        shift: the change of their data, a name in SHIFTS; empty for none.
        options: the options of the shift.
        factor: their updates are multiplied by it (see `Attacked`).
        lie: what they do to their uploads, a name in LIES; empty for nothing. The server then checks all uploads.
        with_bad_agents: False if the good agents are alone.
    """

    name: str
    description: str
    shift: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    factor: float = 1.0
    lie: str = ""
    with_bad_agents: bool = True

    def federation(self, seed: int) -> Federation:
        """The good agents come first; their data are the same in every case."""
        fed = rotated_digits(seed, [*GOOD_TURNS, *BAD_TURNS])
        if not self.with_bad_agents:
            return _only_good_agents(fed)
        bad = range(len(GOOD_TURNS), fed.E)
        return SHIFTS[self.shift](fed, bad, seed=seed, **self.options) if self.shift else fed

    def setup(self, algorithm: Algorithm, seed: int) -> Setup:
        """A run of this algorithm; if the case says so, the bad agents attack it."""
        if self.factor != 1:
            algorithm = Attacked(algorithm, (1.0,) * len(GOOD_TURNS) + (self.factor,) * len(BAD_TURNS))
        return Setup.of(algorithm, self.federation(seed), ROUNDS, seed=seed)

    def with_liars(self, setup: Setup) -> Setup:
        """The run on an engine whose bad agents lie and whose server checks; unchanged if the case has no lie."""
        if not self.lie:
            return setup
        liars, settings = range(len(GOOD_TURNS), setup.E), setup.settings
        engine = setup.task, setup.fed, settings.local, settings.T, settings.seed
        return setup.on(LyingAgents(*engine, lie=LIES[self.lie], liars=liars))


BASELINE = Case(
    "without", "the good agents alone; every other case is compared with this one", with_bad_agents=False
)
FREE_RIDERS = (
    Case("random-labels", "free riders: their labels are drawn at random", "free-riders"),
    Case("zero-updates", "free riders: they send back the model they received", factor=0.0),
)
CASES = (
    BASELINE,
    Case("honest", "three more good agents"),
    *(Case(f"noise-{p:g}", f"{p:.0%} of their labels are wrong", "label-noise", {"p": p}) for p in (0.2, 0.5, 1.0)),
    *FREE_RIDERS,
    Case("duplicates", "copies of the same five training examples", "duplicates", {"n": 5}),
    Case("tiny", "only five training examples", "tiny", {"n": 5}),
    *(Case(f"x{by}", f"their updates are multiplied by {by}", factor=float(by)) for by in (10, 100, -1, -10)),
)
LYING = (
    Case("model-x-3", "they send -3 times their model, with its true weight", lie="model-x-3"),
    Case("share-6", "the same, and claim 6 times the weight", lie="share-6"),
    Case("share-1e9", "the same, and claim a billion times the weight", lie="share-1e9"),
    Case("share-negative", "the same, and claim -5 times the weight", lie="share-negative"),
    Case("share-all", "the same, and claim their whole weight for every cluster", lie="share-all"),
    Case("loss-1e9", "the same, and report a billion times their loss", lie="loss-1e9"),
    Case("upload-1e30", "they send one number of 1e30 in every tensor", lie="upload-1e30"),
)
ALL_CASES = (*CASES, *LYING)

FOCUS_VARIANTS: dict[str, Algorithm] = {
    "FOCUS": Focus(M="auto", init="split"),
    "FOCUS-clip": Focus(M="auto", init="split", robust="clip"),
    "FOCUS-trim": Focus(M="auto", init="split", robust="trim"),
    "FOCUS-M3": Focus(M=3, init="split"),
}
OTHER_METHODS = (FedAvg, FedProx, QFFL, AFL, Ditto, CGSV, IFCA, FedEM, FeSEM, CFL, FedSoft, HardCluster, Local)
METHODS: dict[str, Algorithm] = FOCUS_VARIANTS | {method.name: method() for method in OTHER_METHODS}


def settings(case: Case, method: str) -> dict[str, Any]:
    """Everything that determines the numbers of a run. A stored run with other settings does not count."""
    return {
        "good": GOOD_TURNS,
        "bad": BAD_TURNS if case.with_bad_agents else (),
        "shift": case.shift,
        **case.options,
        "factor": case.factor,
        "rounds": ROUNDS,
        "method": type(METHODS[method]).__name__,
        "options": identifying_options(METHODS[method]),
        **({"lie": case.lie, "limit": audit.MAX_RELATIVE_SIZE} if case.lie else {}),
    }


def select(names: list[str]) -> tuple[list[Case], list[str]]:
    """Choose cases and methods by name.

    Args:
        names: names of cases and of methods. If no case is named, all are chosen; the same holds for the methods.

    Returns:
        The cases, always with the baseline, and the names of the methods.

    Raises:
        InputError: a name is neither a case nor a method.
    """
    known = [case.name for case in ALL_CASES] + list(METHODS)
    for name in names:
        if name not in known:
            raise InputError(f"--only {name}: unknown case or method; choose from {', '.join(known)}")
    cases = [case for case in ALL_CASES if case.name in names] or list(ALL_CASES)
    methods = [name for name in METHODS if name in names] or list(METHODS)
    return [BASELINE, *(case for case in cases if case is not BASELINE)], methods


def _only_good_agents(fed: Federation) -> Federation:
    E = len(GOOD_TURNS)
    training, testing = (Rows.join([rows.of(e) for e in range(E)]) for rows in (fed.training, fed.testing))
    assert fed.clusters is not None
    return replace(fed, training=training, testing=testing, clusters=fed.clusters[:E])


# Runs


def read(cells: Path, results: Path) -> dict[Key, Row]:
    """Read the finished runs whose settings are the present ones."""
    present = {(case.name, method): settings(case, method) for case in ALL_CASES for method in METHODS}
    return STUDY.read(cells, results, present)


def missing_jobs(cases: list[Case], methods: list[str], seeds: int, finished: dict[Key, Row]) -> list[Job]:
    """The runs that are not finished yet, one seed after the other."""
    best = Surrogates()
    return [
        Job(partial(measure_run, case, method, seed, best), SECONDS_PER_RUN)
        for seed in range(seeds)
        for case in cases
        for method in methods
        if (case.name, method, seed) not in finished
    ]


def measure_run(
    case: Case,
    method: str,
    seed: int,
    best: Surrogates,
    progress: runner.ReportProgress = lambda fraction: None,
    stop: runner.Stop = lambda: False,
) -> Row:
    """Run one method in one case and measure the good agents' models.

    Returns:
        acc and loss: means over the good agents; worst: the lowest accuracy of a good agent; excess and largest:
        the mean and the largest excess risk; ari: the adjusted Rand index of their clusters; groups: the cluster of
        every agent, bad ones included. If the bad agents lie, also refused: the share of their uploads that the
        server refused, and wronged: the number of good agents' uploads that it refused. All are None if the run
        diverges.
    """
    identity = {"case": case.name, "method": method, "seed": seed, "settings": settings(case, method)}
    setup, measures = case.setup(METHODS[method], seed), MEASURES + (("refused", "wronged") if case.lie else ())
    return runner.timed_row(identity, measures, lambda: _measure(case, setup, best, progress, stop))


def _measure(case: Case, setup: Setup, best: Surrogates, progress: runner.ReportProgress, stop: runner.Stop) -> Row:
    with RunProgress(False) as bars:
        setup = case.with_liars(after_prerequisite(setup, bars, stop=stop))
    for done in run(setup, eval_every=0, stop=stop):
        progress(done.t / ROUNDS)
    good = slice(len(GOOD_TURNS))
    with setup.engine.threads():
        scores = setup.engine.evaluate(setup.algorithm, done.server, done.states)
    loss, acc, pi = scores.loss, scores.acc, setup.engine.labels(setup.algorithm, done.server, done.states)
    assert acc is not None and setup.fed.clusters is not None
    if not torch.isfinite(loss[good]).all():
        raise Diverged("a good agent's loss is not finite")
    seed = setup.settings.seed
    alone = Setup.of(Local(), BASELINE.federation(seed), ROUNDS, seed=seed, bayes="true")
    excess = excess_risk(loss[good], best.best(alone, stop=stop).loss)
    row: Row = {"acc": average(acc[good]), "worst": acc[good].min().item(), "loss": average(loss[good])}
    row |= {"excess": average(excess), "largest": agnostic_loss(excess), "ari": None, "groups": None}
    if isinstance(setup.engine, LyingAgents):
        refused = [setup.engine.refused.get(e, 0) for e in range(setup.E)]
        row |= {"refused": sum(refused[good.stop :]) / (ROUNDS * len(BAD_TURNS)), "wronged": sum(refused[good])}
    if pi is None:
        return row
    cluster = pi.argmax(1)
    return row | {"ari": adjusted_rand_index(cluster[good], setup.fed.clusters[good]), "groups": cluster.tolist()}
