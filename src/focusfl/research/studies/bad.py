"""What the study of bad agents runs: seven good agents of two kinds, and three that are no help or worse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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
from focusfl.research.studies.attack import Attacked
from focusfl.run.result import lasting
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

GOOD, BAD = (0, 0, 0, 0, 1, 1, 1), (0, 1, 0)  # quarter turns of each agent's digits, before some are made bad
ROUNDS = 40
SECONDS = 1.5  # of a run on one core, about; the bar goes by it


@dataclass(frozen=True)
class Case:
    """What the bad agents are like.

    factor  of their updates (attack.Attacked)
    """

    name: str
    says: str
    shift: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    factor: float = 1.0
    there: bool = True

    def federation(self, seed: int) -> Federation:
        """The good agents first; their data are the same in every case."""
        fed = rotated_digits(seed, [*GOOD, *BAD])
        if not self.there:
            return only_good(fed)
        bad = range(len(GOOD), fed.E)
        return SHIFTS[self.shift](fed, bad, seed=seed, **self.options) if self.shift else fed

    def setup(self, algorithm: Algorithm, seed: int) -> Setup:
        if self.factor != 1:
            algorithm = Attacked(algorithm, (1.0,) * len(GOOD) + (self.factor,) * len(BAD))
        return Setup.of(algorithm, self.federation(seed), ROUNDS, seed=seed)


WITHOUT = Case("without", "the good agents alone: what the others are compared with", there=False)
RIDERS = (
    Case("random-labels", "free riders: labels drawn at random", "free-riders"),
    Case("zero-updates", "free riders: they send back what they got", factor=0.0),
)
CASES = (
    WITHOUT,
    Case("honest", "three good agents more"),
    *(Case(f"noise-{p:g}", f"{p:.0%} of their labels wrong", "label-noise", {"p": p}) for p in (0.2, 0.5, 1.0)),
    *RIDERS,
    Case("duplicates", "five training examples again and again", "duplicates", {"n": 5}),
    Case("tiny", "five training examples", "tiny", {"n": 5}),
    *(Case(f"x{by}", f"updates times {by}", factor=float(by)) for by in (10, 100, -1, -10)),
)

FOCUS: dict[str, Algorithm] = {
    "FOCUS": Focus(M="auto", init="split"),
    "FOCUS-clip": Focus(M="auto", init="split", robust="clip"),
    "FOCUS-trim": Focus(M="auto", init="split", robust="trim"),
    "FOCUS-M3": Focus(M=3, init="split"),
}
OTHERS = (FedAvg, FedProx, QFFL, AFL, Ditto, CGSV, IFCA, FedEM, FeSEM, CFL, FedSoft, HardCluster, Local)
METHODS: dict[str, Algorithm] = FOCUS | {kind.name: kind() for kind in OTHERS}


def settings(case: Case, method: str) -> dict[str, Any]:
    """What decides a run's numbers. A row kept with other settings does not count."""
    made_bad = {"shift": case.shift, **case.options, "factor": case.factor}
    agents = {"good": GOOD, "bad": BAD if case.there else (), **made_bad}
    return {
        **agents,
        "rounds": ROUNDS,
        "method": type(METHODS[method]).__name__,
        "options": lasting(METHODS[method]),
    }


def chosen(only: list[str]) -> tuple[list[Case], list[str]]:
    """The cases and methods with these names, of either all where none is named. The comparison is always made."""
    known = [case.name for case in CASES] + list(METHODS)
    for name in only:
        if name not in known:
            raise InputError(f"--only {name}: expected one or more of {', '.join(known)}")
    cases = [case for case in CASES if case.name in only] or list(CASES)
    methods = [name for name in METHODS if name in only] or list(METHODS)
    return [WITHOUT, *(case for case in cases if case is not WITHOUT)], methods


def only_good(fed: Federation) -> Federation:
    E = len(GOOD)
    training, testing = (Rows.join([rows.of(e) for e in range(E)]) for rows in (fed.training, fed.testing))
    assert fed.clusters is not None
    return replace(fed, training=training, testing=testing, clusters=fed.clusters[:E])
