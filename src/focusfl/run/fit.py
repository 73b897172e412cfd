"""fit(): train one method on one federation, from Python."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from focusfl.core import Algorithm
from focusfl.core.train import Optimiser
from focusfl.data.federation import Federation
from focusfl.run import fit_folder
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.callbacks import Callback, Callbacks, Watcher
from focusfl.run.loop import Stop, never, run
from focusfl.run.result import Result, clusters_of
from focusfl.run.settings import Settings, takes_settings
from focusfl.run.setup import Model, Setup
from focusfl.util.device import NO_BF16_SUPPORT
from focusfl.util.errors import InputError, Interrupted, nearest, require
from focusfl.util.files import make_folder
from focusfl.util.interrupt import graceful_stop
from focusfl.util.progress import RunProgress

NO_CALLBACKS = Callback()

_SHARED = Surrogates()  # in memory: methods compared in one session share their surrogates


@takes_settings
def fit(
    algorithm: Algorithm,
    fed: Federation,
    *,
    model: Model | str | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Watcher | Sequence[Watcher] = (),
    optimiser: Optimiser | None = None,
    **options: Any,
) -> Result:
    """Train a method, evaluate it on every agent's test data, and measure fairness.

    Args:
        algorithm: The method, for example ``ff.Focus(M=3)``.
        fed: The agents and their data.
        model: A function that makes a network (called under the seed), a torch.nn.Module, whose weights are the
            start, or a name: "mlp:64,32" (hidden layers), "linear", "resnet18:16" (width) or
            "my_module:make_network". Default: the data set's recipe.
        settings: All options, as one object.
        **options: Fields of ``ff.Settings``, for example ``rounds=60, seed=1``; they override those in `settings`.
        progress: Show progress bars on stderr. Default: if stderr is a terminal.
        out: A folder for the history, checkpoints and the result. Ctrl-C then finishes the round first.
        resume: Continue the run in that folder; one that has finished is only read and evaluated.
        callbacks: `ff.Callback` objects, or functions f(setup, done) that are called after each round; one, or a
            list of them. One that returns True ends the run after this round.
        optimiser: Replaces that of `train`: "sgd", "adam", "adamw" or "rmsprop".

    Returns:
        The result: losses and excess risks per agent, FAA, labels, predictions, history. Rounds are evaluated every
        `eval_every` rounds if that option, a terminal, `out`, `callbacks`, `metrics` or validation data ask for it,
        otherwise only the last one.

    Raises:
        InputError: If the input cannot be used; the message says what to do.
        Diverged: If training produced NaN or infinite numbers.
        Interrupted: If the user stopped a run that has a folder; it can be resumed.

    Example:
        >>> import focusfl as ff
        >>> result = ff.fit(ff.FedAvg(), ff.data.synthetic(), rounds=1)
        >>> result.loss.shape
        torch.Size([10])
    """
    if optimiser is not None:
        train = options.get("train") or (settings and settings.train) or fed.recipe.train
        options["train"] = replace(train, optimiser=optimiser)
    if resume and out is None:
        raise InputError("resume = True: set out, the folder of the run to resume")
    watchers = Callbacks(callbacks)
    _check_names(options)
    _check_weights(algorithm)
    setup = Setup.of(algorithm, fed, model=model, settings=settings, **options)
    resolve(setup.settings.bayes, setup.fed)
    for line in _cautions(setup):
        warnings.warn(line, stacklevel=2)
    with RunProgress(progress) as bars:
        every = setup.settings.eval_every
        if out is not None:
            return _fit_in_folder(Path(out).expanduser(), setup, resume, bars, watchers)
        metrics = options.get("metrics") or (settings and settings.metrics)
        asked = bars.visible or watchers.each or metrics or setup.validates or "eval_every" in options
        return train_and_judge(
            setup, bars, _SHARED, eval_every=every if asked else setup.settings.T, callbacks=watchers
        )


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise an InputError for an unknown option; it suggests the nearest of fit's own and those of Settings."""
    known = [name for name in inspect.signature(fit).parameters if name not in ("algorithm", "fed")]
    for name in options:
        if name not in known:
            raise InputError(f"unknown option {name!r}: {nearest(name, known)}")


def _check_weights(algorithm: Algorithm) -> None:
    """Raise an InputError if the option weight_by_n of a method is text or a number, which would count as true."""
    by_n = getattr(algorithm, "weight_by_n", None)
    require("weight_by_n", repr(by_n), by_n is None or isinstance(by_n, bool), "True, False or None")


def _fit_in_folder(out: Path, setup: Setup, resume: bool, bars: RunProgress, watchers: Callback) -> Result:
    with fit_folder.claimed(out, setup, resume), graceful_stop() as stop:
        surrogates = Surrogates(out / "surrogates")
        try:
            result = train_and_judge(setup, bars, surrogates, out, stop=stop, callbacks=watchers)
        except Interrupted as why:
            raise Interrupted(f"{why}: fit with out={str(out)!r} and resume=True continues") from why
        fit_folder.finish(out, result)
    return result


def train_and_judge(
    setup: Setup,
    bars: RunProgress,
    surrogates: Surrogates,
    folder: Path | None = None,
    eval_every: int | None = None,
    stop: Stop = never,
    callbacks: Callback = NO_CALLBACKS,
) -> Result:
    """Train, then compute the best losses. With a folder, resume a run that was started there."""
    setup = after_prerequisite(setup, bars, folder, stop)
    callbacks.on_start(setup)
    watch = bars.add(f"{setup.algorithm.name} seed {setup.settings.seed}", setup.settings.T)
    for last in run(
        setup, folder, folder is not None, eval_every, stop, lambda d: bool(callbacks.on_round(setup, d))
    ):
        watch(last.trained, last.loss)
    assert last.scores is not None
    clusters = clusters_of(setup.algorithm, last.pi, setup.E)
    watch = bars.add(f"best loss seed {setup.settings.seed}", setup.settings.T, at_once=False)  # it may be cached
    best = surrogates.best(setup, clusters, lambda done: watch(done.t, done.loss), stop)
    measured = last.scores, last.pi, best, last.total_seconds, last.validation
    result = Result(setup, last.server, last.states, *measured, last.t, last.trained, last.history)
    callbacks.on_end(setup, result)
    return result


def after_prerequisite(setup: Setup, bars: RunProgress, folder: Path | None = None, stop: Stop = never) -> Setup:
    """Run the method whose clusters this one needs, if any, and return the run with these clusters."""
    needed = setup.algorithm.prerequisite()
    if needed is None:
        return setup
    first = setup.changed(needed.algorithm, patience=None)
    watch = bars.add(
        f"{first.algorithm.name} for {setup.algorithm.name} seed {setup.settings.seed}", setup.settings.T
    )
    subfolder = None if folder is None else make_folder(folder / "first")
    for last in run(first, subfolder, folder is not None, 0, stop):
        watch(last.t, last.loss)
    pi = first.engine.labels(first.algorithm, last.server, last.states)
    return setup.changed(needed.with_clusters(clusters_of(first.algorithm, pi, setup.E)))


def _cautions(setup: Setup) -> list[str]:
    """Return the notes without what only says what each column is: `Federation.describe` says that."""
    inputs = getattr(setup.fed, "inputs", None)
    schema = None if inputs is None else inputs.schema
    plain = [] if schema is None else schema.remarks()
    return [line for line in notes(setup) if line not in plain]


def notes(setup: Setup) -> list[str]:
    """Return warnings about settings and data that are allowed but may not be intended."""
    M, E = getattr(setup.algorithm, "M", 1), setup.E
    lines = []
    if M != "auto" and M > E:
        lines.append(f"M = {M} clusters for {E} agents: at least {M - E} will stay empty")
    if setup.settings.precision == "bf16" and not setup.bf16:
        lines.append(NO_BF16_SUPPORT)
    return lines + setup.fed.remarks()
