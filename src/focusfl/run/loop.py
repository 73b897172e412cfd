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
        loop = _Loop(setup, folder, resume, eval_every)
        while not loop.ended:
            last = loop.train(on_round)
            if last is None:
                continue
            interrupted = stop() and not loop.ended
            loop.save_if_due(interrupted)
            yield last
            if interrupted:
                raise Interrupted(f"stopped after round {loop.done} of {setup.settings.T}")
        if (result := loop.finish()) is not None:
            yield result
    finally:
        setup.engine.close()


class _Loop:
    """A run between two rounds, and its next round.

    Args:
        setup: The run.
        folder: See `run`.
        resume: See `run`.
        eval_every: The number of rounds between two evaluations; 0: none.

    Attributes:
        server: The server's state.
        states: The agents' states, stacked; rounds write them in place.
        done: The number of rounds trained so far.
        ended: Whether no round of training follows.
    """

    def __init__(self, setup: Runnable, folder: Path | None, resume: bool, eval_every: int) -> None:
        at, settings = _start(setup, folder, resume), setup.settings
        self.setup, self.folder, self.eval_every, self.T = setup, folder, eval_every, settings.T
        self.server, self.states, self.done = at.server, at.states, at.t
        self.first, self.ended = at.t, at.stopped or at.t == settings.T
        self.history, setup.engine.returns = History(folder, at.t), at.returns
        groups = setup.algorithm.settled, setup.algorithm.keep_together
        self.early = EarlyStopping(settings.patience, *groups, at.best, settings.local.lr == "auto", at.rate)

    def train(self, on_round: Callable[[Round], bool]) -> Round | None:
        """Train one round and take note of it; None if it diverged and was taken back."""
        setup, early, engine = self.setup, self.early, self.setup.engine
        started = time.perf_counter()
        engine.rate, engine.best = early.rate, 0 if early.best is None else early.best.round
        found = Evaluation()
        try:
            self.server, replied, dropped = _one_round(setup, self.server, self.states, self.done)
            seconds = time.perf_counter() - started
            if self.eval_every and (self.done + 1 == self.T or (self.done + 1) % self.eval_every == 0):
                found = _evaluate(setup, self.server, self.states, self.done + 1)
        except Diverged:
            if not early.takes_back():
                raise
            self._take_back()
            return None
        self.done += 1
        self._judge(found)
        times = self.history.seconds + seconds, seconds, replied
        after = self.done, self.server, self.states
        last = Round(*after, *found[:3], *times, found.validation, self.done, self.history.rows)
        self.ended = on_round(last) or early.over or self.done == self.T
        if self.ended and self.eval_every and found.scores is None:
            found = _evaluate(setup, self.server, self.states, self.done)
            self._judge(found)
            last = replace(last, scores=found.scores, pi=found.pi, loss=found.loss, validation=found.validation)
        if found.scores is not None:
            dropped |= {e: f"evaluation: {why}" for e, why in found.scores.dropped.items() if e not in dropped}
        self.history.write(self.done, found.scores, found.pi, seconds, dropped, found.validation)
        if not self.ended and (back := early.returns()) is not None:
            self.server = _return_to(setup, self.states, back.round, back.server, back.states)
        return last

    def _judge(self, found: Evaluation) -> None:
        """Let early stopping take note of the validation loss after this round."""
        loss = _comparable(self.setup, self.early, found)
        self.early.update(self.done, loss, self.server, self.states, self.setup.engine.judges)

    def _take_back(self) -> None:
        """Return to the best round so far, or to the start."""
        best = self.early.best
        start = (0, *self.setup.start()) if best is None else (best.round, best.server, best.states)
        self.server = _return_to(self.setup, self.states, *start)
        if self.done and self.setup.engine.returns:  # nodes have returned: so must a resumed run
            self._save(stopped=False)

    def save_if_due(self, interrupted: bool) -> None:
        """Write a checkpoint at the end, before an interruption, and every few rounds."""
        if self.ended or interrupted or self.done % self.setup.settings.checkpoint_every == 0:
            self.history.sync()  # first: a checkpoint's rounds are always in the history
            self._save(stopped=self.ended and self.done < self.T)

    def _save(self, stopped: bool) -> None:
        if self.folder is not None:
            more = self.early.best, stopped, self.early.rate, self.setup.engine.returns
            checkpoint.save(self.folder, self.setup.fingerprint, self.done, self.server, self.states, *more)

    def finish(self) -> Round | None:
        """Return to the best round and run the rounds that the method adds; None if there was nothing to do."""
        setup, best, adds = self.setup, self.early.best, self.setup.algorithm.finish
        t, returned = self.done, best is not None and best.round != self.done
        if best is not None:
            t = best.round
            if returned:
                self.server = _return_to(setup, self.states, t, best.server, best.states)
        held_out = None  # how good the shared models are: afterwards agents train on their validation data, too
        if adds(self.server) is not None:
            if self.eval_every and setup.validates:
                held_out = setup.engine.evaluate(setup.algorithm, self.server, self.states, "validation")
            setup.engine.adapting_from(t)
            if setup.engine.returns:  # a run that is killed repeats all these rounds
                self._save(stopped=self.done < self.T)
        self.server, finished = _finish(setup, self.server, self.states)
        if not (returned or finished or self.done == self.first):  # if it was resumed, nothing may be left to do
            return None
        found = _evaluate(setup, self.server, self.states, t) if self.eval_every else Evaluation()
        found = found if held_out is None else found._replace(validation=held_out)
        times = self.history.seconds, 0.0, 0
        after = t, self.server, self.states
        return Round(*after, *found[:3], *times, found.validation, self.done, self.history.rows)


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
