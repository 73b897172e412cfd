"""Which start of FOCUS finds the clusters? The data are such that the true clusters are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from torch import nn

from focusfl.algorithms.focus.focus import Focus
from focusfl.data import rotated_cifar, rotated_digits, rotated_mnist, synthetic, yelp_imdb
from focusfl.data.federation import Federation
from focusfl.fairness.metrics import adjusted_rand_index, agnostic_loss, average, excess_risk, faa
from focusfl.models import linear
from focusfl.research.studies import runner
from focusfl.research.studies.runner import Job, Key, Row, Study
from focusfl.run.best_loss import Surrogates
from focusfl.run.history import rounds_to
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

STUDY = Study("start", variant="start")
MEASURES = ("ari", "since", "clusters", "loss", "worst", "acc", "faa")
STARTS = ("split", "tied", "independent")
WARMUP_ROUNDS = (1, 3, 10, 25, 50)  # rounds with one shared model: the start "split:10" and so on
EXTRA_CLUSTERS = (0, 1, 2, 4)  # clusters beyond the true number: the start "split+2" and so on
AUTO: Final = "auto"  # the start "split" with M = "auto"
CLUSTER_NUMBERS = (1, 2, 3, 4, 6)  # true numbers of clusters that "auto" has to find


# Cases


@dataclass(frozen=True)
class Case:
    """One federation. The seed of a run draws its data and the first weights.

    Args:
        name: the name of the case.
        data: makes the federation.
        options: the options of `data`.
        clusters: the true number of clusters.
        rounds: the rounds of a run.
        seconds: the expected duration of a run on one core, for the progress bar.
        starts: the starts that are compared.
        max_seeds: the largest number of seeds, for cases whose runs take long; None for no limit.
        evaluate_every_round: also measure in which round an accuracy is reached.
    """

    name: str
    data: Callable[..., Federation]
    options: dict[str, Any]
    clusters: int
    rounds: int
    seconds: float
    starts: tuple[str, ...] = STARTS
    max_seeds: int | None = None
    evaluate_every_round: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the numbers of a run. A stored run with other settings does not count."""
        return {"data": self.data.__name__, **self.options, "clusters": self.clusters, "rounds": self.rounds}

    def seeds(self, requested: int) -> int:
        """The number of seeds of this case if `requested` are requested for all."""
        return requested if self.max_seeds is None else min(requested, self.max_seeds)

    def runs(self, seeds: int) -> list[Key]:
        """All runs of this case."""
        return [(self.name, start, seed) for seed in range(self.seeds(seeds)) for start in self.starts]

    def setup(self, start: str, seed: int) -> Setup:
        """A run of FOCUS from this start."""
        fed = self.data(seed=seed, **self.options)
        model = partial(standard_normal_linear, fed.training.x.shape[1]) if self.data is synthetic else None
        return Setup.of(_focus(start, self.clusters), fed, self.rounds, model=model, seed=seed)


def _focus(start: str, M: int) -> Focus:
    """FOCUS with the start of this name: for example "tied", "split:10", "split+2" or "auto"."""
    if start == AUTO:
        return Focus(M=AUTO, init="split")
    start, _, extra = start.partition("+")
    init, _, warmup = start.partition(":")
    focus = Focus(M=M + int(extra or 0), init=cast(Literal["split", "tied", "independent"], init))
    return replace(focus, warmup=int(warmup)) if warmup else focus


def standard_normal_linear(inputs: int) -> nn.Module:
    """A linear model with weights from N(0, 1). Torch's default ones are small: they hide how the start matters."""
    network = linear(inputs)
    for weight in network.parameters():
        nn.init.normal_(weight)
    return network


def mirrored_digits(seed: int = 0, kinds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Federation:
    """Rotated digits for one agent per entry of `kinds`: 0 to 3 are quarter turns, 4 to 7 the same in a mirror."""
    fed = rotated_digits(seed, [k % 4 for k in kinds])

    def view(data: Any, kind: int) -> tuple[Any, Any]:
        return (data.x.flip(2) if kind >= 4 else data.x), data.y

    made = Federation.from_agents(
        [view(fed.training.of(e), k) for e, k in enumerate(kinds)],
        test=[view(fed.testing.of(e), k) for e, k in enumerate(kinds)],
        clusters=[sorted(set(kinds)).index(k) for k in kinds],
        classes=10,
        name="mirrored-digits",
    )
    return replace(made, recipe=fed.recipe)


SYNTHETIC: dict[str, dict[str, Any]] = {  # R > 4r in all of them
    "paper": {},
    "near": {"R": 0.5},
    "far": {"R": 4.0},
    "spread": {"r": 0.1},
    "wide": {"r": 0.24},
    "half": {"outliers": 5},
    "three": {"outliers": 4, "outlier_clusters": 2},
    "four": {"outliers": 6, "outlier_clusters": 3, "r": 0.1},
    "long": {"d": 40},
    "few": {"n": 20, "R": 2.0, "r": 0.2},
}
DIGITS = {"paper": [0] * 7 + [1, 1, 2], "lone": [0] * 9 + [2], "four": [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]}
MNIST = {"raw": False, "normalised": True}
CIFAR = {"n": 200, "n_test": 100, "width": 8}


def all_cases() -> list[Case]:
    """Every case of the study, with the quick ones first."""
    full = Case("full-mnist-raw", rotated_mnist, {"normalise": False}, 3, 40, 600, ("split",), 2, True)
    return [*_start_cases(), *_auto_cases(), *_extra_cluster_cases(), *_warmup_cases(), full]


def select(names: list[str]) -> list[Case]:
    """Choose cases by name.

    Args:
        names: names of cases, or their first words: "synthetic" stands for "synthetic-paper" and so on. If there
            are no names, all cases are chosen.

    Raises:
        InputError: no case has one of the names.
    """

    def matches(case: Case, name: str) -> bool:
        return case.name == name or case.name.startswith(f"{name}-")

    cases = all_cases()
    for name in names:
        if not any(matches(case, name) for case in cases):
            known = ", ".join(case.name for case in cases)
            raise InputError(f"--only {name}: unknown case; choose from {known}")
    return [case for case in cases if not names or any(matches(case, name) for name in names)]


def _start_cases() -> Iterator[Case]:
    for name, options in SYNTHETIC.items():
        clusters = 1 + options.get("outlier_clusters", 1)
        yield Case(f"synthetic-{name}", synthetic, options, clusters, 60, 1.2)
    for name, turns in DIGITS.items():
        yield Case(f"digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 60, 6)
    for name, normalise in MNIST.items():
        options = {"n": 1000, "normalise": normalise}
        yield Case(f"mnist-{name}", rotated_mnist, options, 3, 40, 70)
    yield Case("text", yelp_imdb, {}, 2, 30, 20, max_seeds=3)
    yield Case("cifar", rotated_cifar, CIFAR, 2, 20, 200, max_seeds=2)


def _auto_cases() -> Iterator[Case]:
    """Twelve agents, in clusters of equal size ("even") or with one agent in all but the first ("lone")."""
    for K in CLUSTER_NUMBERS:
        for shape, others in {"even": 12 - 12 // K, "lone": K - 1}.items() if K > 1 else [("even", 0)]:
            options = {"E": 12, "outliers": others, "outlier_clusters": max(1, K - 1), "r": 0.1}
            yield Case(f"auto-synthetic-{shape}-{K}", synthetic, options, K, 30, 0.6, (AUTO,))
    for K in CLUSTER_NUMBERS:
        for shape, size in {"even": 12 // K, "lone": 1}.items() if K > 1 else [("even", 1)]:
            rest = [k for k in range(1, K) for _ in range(size)]
            kinds = [0] * (12 - len(rest)) + rest
            yield Case(f"auto-digits-{shape}-{K}", mirrored_digits, {"kinds": kinds}, K, 20, 2, (AUTO,))


def _extra_cluster_cases() -> Iterator[Case]:
    starts = tuple(f"split+{extra}" for extra in EXTRA_CLUSTERS)
    for name, turns in DIGITS.items():
        yield Case(f"more-digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 60, 6, starts, 5)
    for name in ("paper", "three"):
        clusters = 1 + SYNTHETIC[name].get("outlier_clusters", 1)
        yield Case(f"more-synthetic-{name}", synthetic, SYNTHETIC[name], clusters, 60, 1.2, starts)


def _warmup_cases() -> Iterator[Case]:
    """The total number of rounds is the same for every warm-up."""
    starts = tuple(f"split:{t}" for t in WARMUP_ROUNDS)
    for name, turns in DIGITS.items():
        yield Case(f"warmup-digits-{name}", rotated_digits, {"turns": turns}, len(set(turns)), 80, 6, starts, 5)
    for name, normalise in MNIST.items():
        options = {"n": 1000, "normalise": normalise}
        yield Case(f"warmup-mnist-{name}", rotated_mnist, options, 3, 80, 100, starts, 2)


# Runs


def read(cells: Path, results: Path, cases: list[Case]) -> dict[Key, Row]:
    """Read the finished runs of these cases whose settings are the present ones."""
    present = {(case.name, start): case.settings for case in cases for start in case.starts}
    return STUDY.read(cells, results, present)


def missing_jobs(cases: list[Case], seeds: int, finished: dict[Key, Row]) -> list[Job]:
    """The runs that are not finished yet. All starts of one case and seed share their best losses."""
    best = Surrogates()
    return [
        Job(partial(measure_run, case, start, seed, best), case.seconds)
        for case in cases
        for name, start, seed in case.runs(seeds)
        if (name, start, seed) not in finished
    ]


def measure_run(
    case: Case,
    start: str,
    seed: int,
    best: Surrogates,
    progress: runner.ReportProgress = lambda fraction: None,
    stop: runner.Stop = lambda: False,
) -> Row:
    """Run FOCUS once and measure its clusters and its models.

    Returns:
        ari: the adjusted Rand index of its clusters and the true ones; since: the round from which they are
        correct, None if they are not at the end; clusters: how many there are; loss, acc, worst: the mean loss, the
        mean accuracy and the worst agent's loss; faa; rounds_to: the round in which each accuracy was reached, if
        the case asks for it. All but the last are None if the run diverges.
    """
    identity = {"case": case.name, "start": start, "seed": seed, "settings": case.settings}
    return runner.timed_row(identity, MEASURES, lambda: _measure(case, start, seed, best, progress, stop))


def _measure(
    case: Case, start: str, seed: int, best: Surrogates, progress: runner.ReportProgress, stop: runner.Stop
) -> Row:
    setup = case.setup(start, seed)
    ari, since, clusters, scores = 0.0, None, 0, None
    accuracies: list[Row] = []
    for done in run(setup, eval_every=1 if case.evaluate_every_round else case.rounds, stop=stop):
        pi = setup.engine.labels(setup.algorithm, done.server, done.states)
        assert pi is not None and setup.fed.clusters is not None
        cluster, scores = pi.argmax(1), done.scores
        ari, clusters = adjusted_rand_index(cluster, setup.fed.clusters), len(cluster.unique())
        since = (since or done.t) if ari == 1 else None
        if scores is not None and scores.acc is not None:
            accuracies.append({"round": done.t, "avg_acc": average(scores.acc)})
        progress(done.t / case.rounds)
    assert scores is not None
    row: Row = {"ari": round(ari, 6), "since": since, "clusters": clusters}
    row |= {"rounds_to": rounds_to(accuracies)} if case.evaluate_every_round else {}
    row |= {"loss": average(scores.loss), "worst": agnostic_loss(scores.loss)}
    row |= {"faa": faa(excess_risk(scores.loss, best.best(setup, stop=stop).loss))}
    return row | {"acc": None if scores.acc is None else average(scores.acc)}
