"""fit(): train one method on one federation, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from focusfl.core import Algorithm
from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.result import Result, found_clusters
from focusfl.run.training import Model, Round, Setup, run
from focusfl.util.device import NO_BF16_SUPPORT
from focusfl.util.files import make_folder
from focusfl.util.progress import RoundCallback, RunProgress

_SHARED = Surrogates()  # in memory: methods compared in one session share their surrogates


def fit(
    algorithm: Algorithm,
    fed: Federation,
    *,
    rounds: int | None = None,
    model: Model | None = None,
    train: Train | None = None,
    seed: int = 0,
    engine: str = "auto",
    fraction: float = 1.0,
    device: str = "cpu",
    precision: str = "float32",
    joins: Mapping[int, int] | None = None,
    leaves: Mapping[int, int] | None = None,
    bayes: str = "auto",
    progress: bool | None = None,
) -> Result:
    """Train, evaluate on every agent's test data, and measure fairness.

    rounds, model, train  by default the data's own recipe. `model` is a function that makes a network
                          (called under the seed) or a torch.nn.Module (its weights are the start)
    engine                auto | serial | vectorised | flower
    fraction              of the agents that take part in each round
    device                cpu | cuda | mps | auto
    precision             float32 | bf16: local training multiplies in bfloat16, where the processor has units
    joins, leaves         agents that come or go: {7: 40}, agent 7 takes part from round 40 on, or up to round 39;
                          rounds count from 1
    bayes                 best loss of each agent: auto | exact | true | learned | agent (see focusfl.bayes)
    progress              bars on stderr; by default where stderr is a terminal
    """
    options = engine, fraction, device, precision, joins, leaves
    setup = Setup.of(algorithm, fed, rounds, model, train, seed, *options)
    resolve(bayes, fed)
    for line in notes(setup):
        warnings.warn(line, stacklevel=2)
    with RunProgress(progress) as bars:
        return train_and_judge(setup, bars, _SHARED, bayes, eval_every=1 if bars.visible else 0)


def train_and_judge(
    setup: Setup,
    bars: RunProgress,
    surrogates: Surrogates,
    bayes: str = "auto",
    folder: Path | None = None,
    resume: bool = False,
    eval_every: int = 0,
    checkpoint_every: int = 10,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """The rounds, then the best losses, each with a bar. eval_every 0: after the last round alone."""
    setup = with_clusters(setup, bars, folder, resume, checkpoint_every, stop)
    who = f"{setup.algorithm.name} seed {setup.seed}"
    watch = bars.add(who, setup.rounds)
    for last in run(setup, folder, resume, eval_every or setup.rounds, checkpoint_every, stop):
        watch(last.t, last.loss)
    assert last.scores is not None
    found = found_clusters(setup, last.server, last.states)
    best = surrogates.best(setup, bayes, found, lazily(bars, f"best loss seed {setup.seed}", setup.rounds), stop)
    return Result(setup, last.server, last.states, last.scores, best, last.seconds)


def with_clusters(
    setup: Setup,
    bars: RunProgress,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 10,
    stop: Callable[[], bool] = lambda: False,
) -> Setup:
    """A method that builds on the clusters of another (core.Algorithm.first) gets them: that one is run here."""
    first = setup.algorithm.first()
    if first is None:
        return setup
    before = replace(setup, algorithm=first)
    watch = bars.add(f"{first.name} for {setup.algorithm.name} seed {setup.seed}", setup.rounds)
    inside = None if folder is None else make_folder(folder / "first")
    for last in run(before, inside, resume, 0, checkpoint_every, stop):
        watch(last.t, last.loss)
    return replace(setup, algorithm=setup.algorithm.given(found_clusters(before, last.server, last.states)))


def notes(setup: Setup) -> list[str]:
    """What is allowed but may not be meant."""
    M, E = getattr(setup.algorithm, "M", 1), setup.fed.E
    lines = []
    if M != "auto" and M > E:
        lines.append(f"M = {M} clusters for {E} agents: at least {M - E} will stay empty")
    if setup.precision == "bf16" and not setup.bf16:
        lines.append(NO_BF16_SUPPORT)
    return lines + setup.fed.remarks()


def lazily(bars: RunProgress, name: str, rounds: int) -> Callable[[Round], None]:
    """A bar that appears with its first round: surrogates that are known already need none."""
    made: list[RoundCallback] = []

    def watch(done: Round) -> None:
        if not made:
            made.append(bars.add(name, rounds))
        made[0](done.t, done.loss)

    return watch
