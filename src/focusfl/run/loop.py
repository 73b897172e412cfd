"""The loop of every run: round after round, on any engine, with history, checkpoints and resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from focusfl.core import Algorithm, State
from focusfl.core.tree import flatten, put, tree_map
from focusfl.engines import Engine, Scores, plan
from focusfl.fairness.metrics import average
from focusfl.fairness.scores import mean
from focusfl.run import checkpoint
from focusfl.run.early_stopping import EarlyStopping
from focusfl.run.history import History
from focusfl.run.presence import Presence
from focusfl.run.settings import Settings
from focusfl.util import files
from focusfl.util.errors import Diverged, Interrupted

Stop = Callable[[], bool]


class Runnable(Protocol):
    """What the loop needs of a run: a `Setup` on this machine, or a deployment across machines."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def E(self) -> int: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def presence(self) -> Presence: ...
    @property
    def validates(self) -> bool: ...  # there are validation data
    @property
    def fingerprint(self) -> str: ...
    def start(self) -> tuple[State, State]: ...
    def enrolled(self, server: State, count: int) -> State: ...


@dataclass(frozen=True)
class Round:
    """After t of T rounds. The next round overwrites `states`."""

    t: int
    server: State
    states: State
    scores: Scores | None  # None: not evaluated after this round
    pi: Tensor | None  # [E, M] labels, if it was evaluated and the method has labels
    loss: float | None  # the mean over the agents, if it was evaluated
    total_seconds: float  # of training since round 1, without evaluation
    seconds: float  # of this round
    replied: int  # how many agents
    validation: Scores | None = None  # on validation data, if it was evaluated and there are such data
    trained: int = 0  # rounds trained so far: more than t if a run that stopped early returns to its best round
    history: Sequence[Mapping[str, Any]] = ()  # the rounds so far (run.history.RoundRow)

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The metrics that were asked for, [E] by name; empty if the round was not evaluated."""
        return {} if self.scores is None else self.scores.metrics


class Evaluation(NamedTuple):
    """What an evaluation found: see `Round`."""

    scores: Scores | None = None
    pi: Tensor | None = None
    loss: float | None = None
    validation: Scores | None = None

    @property
    def validation_loss(self) -> float | None:
        """The mean over the agents that have validation data."""
        return None if self.validation is None else mean(self.validation.loss)


def never() -> bool:
    """The default `stop`."""
    return False


def go_on(_: Round) -> bool:
    """The default `on_round`."""
    return False


def run(
    setup: Runnable,
    folder: Path | None = None,
    resume: bool = False,
    eval_every: int | None = None,
    stop: Stop = never,
    on_round: Callable[[Round], bool] = go_on,
) -> Iterator[Round]:
    """Train, and yield after every round. What is yielded last is the result.

    With `settings.patience`, training may stop early, and the last yield is the round with the lowest validation
    loss.

    Args:
        setup: The run.
        folder: Where history.jsonl and checkpoints go; None: nothing is written.
        resume: Continue from the checkpoint in the folder, if there is one.
        eval_every: Overrides `settings.eval_every`; the last round is evaluated too. 0 never evaluates.
        stop: Asked after each round. If it returns True, a checkpoint is written and Interrupted is raised.
        on_round: Called after each round. If it returns True, this round is the last: it is evaluated, and a run
            that is resumed does not continue after it.

    Raises:
        Diverged: If a number is no longer finite, or too large to go on (`checkpoint.problem`).
        Interrupted: If `stop()` was true.
    """
    eval_every = setup.settings.eval_every if eval_every is None else eval_every
    try:
        yield from _rounds(setup, folder, resume, eval_every, stop, on_round)
    finally:
        setup.engine.close()


def _rounds(
    setup: Runnable,
    folder: Path | None,
    resume: bool,
    eval_every: int,
    stop: Stop,
    on_round: Callable[[Round], bool],
) -> Iterator[Round]:
    settings, T, at = setup.settings, setup.settings.T, _start(setup, folder, resume)
    server, states, done, ended = at.server, at.states, at.t, at.stopped or at.t == T
    history, auto, setup.engine.returns = History(folder, done), settings.local.lr == "auto", at.returns
    groups = setup.algorithm.settled, setup.algorithm.keep_together
    early = EarlyStopping(settings.patience, *groups, at.best, auto, at.rate)
    while not ended:
        started = time.perf_counter()
        setup.engine.rate, found, replied, dropped = early.rate, Evaluation(), 0, dict[int, str]()
        setup.engine.best = 0 if early.best is None else early.best.round
        try:
            server, replied, dropped = _one_round(setup, server, states, done)
            seconds = time.perf_counter() - started
            if eval_every and (done + 1 == T or (done + 1) % eval_every == 0):
                found = _evaluate(setup, server, states, done + 1)
        except Diverged:
            if not early.takes_back():
                raise
            start = (0, *setup.start()) if early.best is None else (early.best.round, *early.best[3:5])
            server = _return_to(setup, states, *start)
            if folder is not None and done and setup.engine.returns:  # nodes have returned: so must a resumed run
                more = early.best, False, early.rate, setup.engine.returns
                checkpoint.save(folder, setup.fingerprint, done, server, states, *more)
            continue
        done += 1
        judged = _comparable(setup, early, found)
        early.update(done, judged, server, states, setup.engine.judges)
        times = history.seconds + seconds, seconds, replied
        last = Round(done, server, states, *found[:3], *times, found.validation, done, history.rows)
        ended = on_round(last) or early.over or done == T
        if ended and eval_every and found.scores is None:
            found = _evaluate(setup, server, states, done)
            early.update(done, _comparable(setup, early, found), server, states, setup.engine.judges)
            last = replace(last, scores=found.scores, pi=found.pi, loss=found.loss, validation=found.validation)
        if found.scores is not None:
            dropped |= {e: f"evaluation: {why}" for e, why in found.scores.dropped.items() if e not in dropped}
        history.write(done, found.scores, found.pi, seconds, dropped, found.validation)
        if not ended and (back := early.returns()) is not None:
            server = _return_to(setup, states, back.round, back.server, back.states)
        interrupted = stop() and not ended
        if folder is not None and (ended or interrupted or done % settings.checkpoint_every == 0):
            history.sync()  # first: a checkpoint's rounds are always in the history
            stopped = ended and done < T
            more = early.best, stopped, early.rate, setup.engine.returns
            checkpoint.save(folder, setup.fingerprint, done, server, states, *more)
        yield last
        if interrupted:
            raise Interrupted(f"stopped after round {done} of {T}")
    chosen, nothing_done = early.best, done == at.t  # it was resumed, and there was nothing left to do
    returned = chosen is not None and chosen.round != done
    if chosen is not None and returned:
        server = _return_to(setup, states, chosen.round, chosen.server, chosen.states)
    t = done if chosen is None else chosen.round
    held_out = None  # how good the shared models are: afterwards agents train on their validation data, too
    if eval_every and setup.validates and setup.algorithm.finish(server) is not None:
        held_out = setup.engine.evaluate(setup.algorithm, server, states, "validation")
    if setup.algorithm.finish(server) is not None:
        setup.engine.adapting_from(t)
        if folder is not None and setup.engine.returns:  # a run that is killed repeats all rounds of `_finish`
            more = early.best, done < T, early.rate, setup.engine.returns
            checkpoint.save(folder, setup.fingerprint, done, server, states, *more)
    server, finished = _finish(setup, server, states)
    if not (returned or finished or nothing_done):
        return
    found = _evaluate(setup, server, states, t) if eval_every else Evaluation()
    found = found if held_out is None else found._replace(validation=held_out)
    yield Round(t, server, states, *found[:3], history.seconds, 0.0, 0, found.validation, done, history.rows)


def _return_to(setup: Runnable, states: State, t: int, server: State, earlier: State) -> State:
    """Put the agents' states after round t back, in place, and return a copy of the server's."""
    put(states, torch.arange(setup.E), earlier)
    setup.engine.returned_to(t)
    return tree_map(torch.clone, server)  # a checkpoint holds both the server's state and the best one


def _comparable(setup: Runnable, early: EarlyStopping, found: Evaluation) -> float | None:
    """Return the mean validation loss, if the best round's is known for the same agents; else None.

    Agents on other machines may be absent. If others answered than after the best round, those judge it again.
    """
    loss, judges, best = found.validation_loss, setup.engine.judges, early.best
    if loss is None or best is None or judges is None or judges == best.judges:
        return loss
    again = setup.engine.judge_again(setup.algorithm, best.server, judges)
    if again is None:
        return None
    early.best = best._replace(loss=again, judges=judges)
    return loss


def _finish(setup: Runnable, server: State, states: State) -> tuple[State, bool]:
    """Run the rounds that a method adds after the last one; return the server's state, and if there were any.

    They are not in the history, and a run that is interrupted in one of them repeats them all.
    """
    t = last = setup.settings.T
    setup.engine.rate = 1.0
    while (more := setup.algorithm.finish(server)) is not None:
        server, _, _ = _one_round(setup, more, states, t, everybody=True)
        t += 1
    return server, t > last


def _start(setup: Runnable, folder: Path | None, resume: bool) -> checkpoint.Checkpoint:
    """Return the states before the first round, or those of the checkpoint from which the run is resumed."""
    server, states = setup.start()
    if folder is not None:
        files.remove_temporary_files(folder)
    if folder is not None and not resume:
        checkpoint.discard(folder)
    if folder is None or not checkpoint.exists(folder):
        return checkpoint.Checkpoint(0, server, states)
    T, max_models = setup.settings.T, setup.algorithm.max_models
    found = checkpoint.load(folder, setup.fingerprint, server, states, max_models, T)

    def here(tree: State) -> State:
        return tree_map(lambda v: v.to(setup.device), tree)

    best = found.best and found.best._replace(server=here(found.best.server), states=here(found.best.states))
    return found._replace(server=here(found.server), states=here(found.states), best=best)


def _one_round(
    setup: Runnable, server: State, states: State, t: int, everybody: bool = False
) -> tuple[State, int, dict[int, str]]:
    """The server's next state, how many agents replied, and why others did not; agents' states change in place."""
    algorithm, engine, presence = setup.algorithm, setup.engine, setup.presence
    present, newcomers = presence.agents(t, setup.E), presence.joining(t)
    fraction = 1.0 if everybody else setup.settings.fraction
    cohort = plan.cohort(setup.settings.seed, t, setup.E, fraction, present)
    if len(newcomers):  # they start with what the server would give a new agent now
        put(states, torch.from_numpy(newcomers), setup.enrolled(server, len(newcomers)))
        engine.agents_joined(newcomers)
    with engine.threads():
        replies = engine.round(algorithm, server, states, t, cohort)
    replied = torch.from_numpy(replies.cohort).to(setup.device)
    server = algorithm.aggregate(server, replies.add, replies.each, replied)
    for name, v in flatten({"server": server, "agents": states}).items():
        if (wrong := checkpoint.problem(name, v)) is not None:
            raise _divergence(t + 1, f"{name} {wrong}", setup.settings)
    return server, len(replied), dict(replies.dropped)


def _evaluate(setup: Runnable, server: State, states: State, t: int) -> Evaluation:
    """Scores of every agent on its own data, labels, and the mean loss.

    Agents that have not joined yet or have left are evaluated with the state they hold.
    """
    with setup.engine.threads():
        scores = setup.engine.evaluate(setup.algorithm, server, states)
        validation = (
            setup.engine.evaluate(setup.algorithm, server, states, "validation") if setup.validates else None
        )
    for e in (~torch.isfinite(scores.loss)).nonzero().flatten().tolist():
        if e not in scores.dropped:
            raise _divergence(t, f"the loss of agent {e} is not finite", setup.settings)
    loss = average(scores.loss[torch.isfinite(scores.loss)])  # of the agents that sent theirs
    if validation is not None and torch.isinf(validation.loss).any():
        raise _divergence(t, "a validation loss is infinite", setup.settings)
    return Evaluation(scores, setup.engine.labels(setup.algorithm, server, states), loss, validation)


def _divergence(t: int, what: str, settings: Settings) -> Diverged:
    advice = f"try a smaller learning rate than train.lr = {settings.local.lr}"
    return Diverged(f"training diverged in round {t} ({what}): {advice}")
