"""fit(): train one method on one federation, from Python."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from focusfl.core import Algorithm
from focusfl.data.federation import Federation
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.loop import Stop, never, run
from focusfl.run.result import Result, clusters_of
from focusfl.run.settings import Settings, takes_settings
from focusfl.run.setup import Model, Setup
from focusfl.util.device import NO_BF16_SUPPORT
from focusfl.util.files import make_folder
from focusfl.util.progress import RunProgress

_SHARED = Surrogates()  # in memory: methods compared in one session share their surrogates


@takes_settings
def fit(
    algorithm: Algorithm,
    fed: Federation,
    *,
    model: Model | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Result:
    """Train a method, evaluate it on every agent's test data, and measure fairness.

    Args:
        algorithm: The method, for example ``ff.Focus(M=3)``.
        fed: The agents and their data.
        model: A function that makes a network (called under the seed), or a torch.nn.Module, whose weights are the
            start. Default: the data set's recipe.
        settings: All options, as one object.
        **options: Fields of ``ff.Settings``, for example ``rounds=60, seed=1``; they override those in `settings`.
        progress: Show progress bars on stderr. Default: if stderr is a terminal.

    Returns:
        The result: losses and excess risks per agent, FAA, labels, predictions.

    Raises:
        InputError: If the input cannot be used; the message says what to do.
        Diverged: If training produced NaN or infinite numbers.

    Example:
        >>> import focusfl as ff
        >>> result = ff.fit(ff.FedAvg(), ff.data.synthetic(), rounds=1)
        >>> result.loss.shape
        torch.Size([10])
    """
    setup = Setup.of(algorithm, fed, model=model, settings=settings, **options)
    resolve(setup.settings.bayes, fed)
    for line in notes(setup):
        warnings.warn(line, stacklevel=2)
    with RunProgress(progress) as bars:
        return train_and_judge(setup, bars, _SHARED, eval_every=1 if bars.visible else setup.settings.T)


def train_and_judge(
    setup: Setup,
    bars: RunProgress,
    surrogates: Surrogates,
    folder: Path | None = None,
    eval_every: int | None = None,
    stop: Stop = never,
) -> Result:
    """Train, then compute the best losses. With a folder, resume a run that was started there."""
    setup = after_prerequisite(setup, bars, folder, stop)
    watch = bars.add(f"{setup.algorithm.name} seed {setup.settings.seed}", setup.settings.T)
    for last in run(setup, folder, folder is not None, eval_every, stop):
        watch(last.t, last.loss)
    assert last.scores is not None
    clusters = clusters_of(setup.algorithm, last.pi, setup.E)
    watch = bars.add(f"best loss seed {setup.settings.seed}", setup.settings.T, at_once=False)  # it may be cached
    best = surrogates.best(setup, clusters, lambda done: watch(done.t, done.loss), stop)
    return Result(setup, last.server, last.states, last.scores, last.pi, best, last.total_seconds)


def after_prerequisite(setup: Setup, bars: RunProgress, folder: Path | None = None, stop: Stop = never) -> Setup:
    """Run the method whose clusters this one needs, if any, and return the run with these clusters."""
    needed = setup.algorithm.prerequisite()
    if needed is None:
        return setup
    first = setup.changed(needed.algorithm)
    watch = bars.add(
        f"{first.algorithm.name} for {setup.algorithm.name} seed {setup.settings.seed}", setup.settings.T
    )
    subfolder = None if folder is None else make_folder(folder / "first")
    for last in run(first, subfolder, folder is not None, 0, stop):
        watch(last.t, last.loss)
    pi = first.engine.labels(first.algorithm, last.server, last.states)
    return setup.changed(needed.with_clusters(clusters_of(first.algorithm, pi, setup.E)))


def notes(setup: Setup) -> list[str]:
    """Return warnings about settings and data that are allowed but may not be intended."""
    M, E = getattr(setup.algorithm, "M", 1), setup.E
    lines = []
    if M != "auto" and M > E:
        lines.append(f"M = {M} clusters for {E} agents: at least {M - E} will stay empty")
    if setup.settings.precision == "bf16" and not setup.bf16:
        lines.append(NO_BF16_SUPPORT)
    return lines + setup.fed.remarks()
