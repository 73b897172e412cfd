"""The loop of every run: round after round, on any engine, with history, checkpoints and resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from focusfl.core import Algorithm, State
from focusfl.core.tree import flatten, put, tree_map
from focusfl.engines import Engine, Scores, plan
from focusfl.fairness.metrics import average
from focusfl.run import checkpoint
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


def never() -> bool:
    """The default `stop`."""
    return False


def run(
    setup: Runnable,
    folder: Path | None = None,
    resume: bool = False,
    eval_every: int | None = None,
    stop: Stop = never,
) -> Iterator[Round]:
    """Train, and yield after every round.

    Args:
        setup: The run.
        folder: Where history.jsonl and checkpoints go; None: nothing is written.
        resume: Continue from the checkpoint in the folder, if there is one.
        eval_every: Overrides `settings.eval_every`; the last round is evaluated too. 0 never evaluates.
        stop: Asked after each round. If it returns True, a checkpoint is written and Interrupted is raised.

    Raises:
        Diverged: If a number is no longer finite, or too large to go on (`checkpoint.problem`).
        Interrupted: If `stop()` was true.
    """
    eval_every = setup.settings.eval_every if eval_every is None else eval_every
    try:
        yield from _rounds(setup, folder, resume, eval_every, stop)
    finally:
        setup.engine.close()


def _rounds(setup: Runnable, folder: Path | None, resume: bool, eval_every: int, stop: Stop) -> Iterator[Round]:
    settings, T = setup.settings, setup.settings.T
    server, states = setup.start()
    rounds_done = 0
    if folder is not None:
        files.remove_temporary_files(folder)
    if folder is not None and not resume:
        checkpoint.discard(folder)
    if folder is not None and checkpoint.exists(folder):
        max_models = setup.algorithm.max_models
        rounds_done, server, states = checkpoint.load(folder, setup.fingerprint, server, states, max_models, T)
        server, states = (tree_map(lambda v: v.to(setup.device), tree) for tree in (server, states))
    history = History(folder, rounds_done)
    for t in range(rounds_done, T):
        started = time.perf_counter()
        server, replied, dropped = _one_round(setup, server, states, t)
        done, last, seconds = t + 1, t + 1 == T, time.perf_counter() - started
        scores, pi, loss = None, None, None
        if eval_every and (last or done % eval_every == 0):
            scores, pi, loss = _evaluate(setup, server, states, done)
            dropped |= {e: f"evaluation: {why}" for e, why in scores.dropped.items() if e not in dropped}
        history.write(done, scores, pi, seconds, dropped)
        stopping = stop() and not last
        if folder is not None and (last or stopping or done % settings.checkpoint_every == 0):
            history.sync()  # first: a checkpoint's rounds are always in the history
            checkpoint.save(folder, setup.fingerprint, done, server, states)
        yield Round(done, server, states, scores, pi, loss, history.seconds, seconds, replied)
        if stopping:
            raise Interrupted(f"stopped after round {done} of {T}")
    if rounds_done == T:  # resumed, and there was nothing left to do
        scores, pi, loss = _evaluate(setup, server, states, T) if eval_every else (None, None, None)
        yield Round(T, server, states, scores, pi, loss, history.seconds, 0.0, 0)


def _one_round(setup: Runnable, server: State, states: State, t: int) -> tuple[State, int, dict[int, str]]:
    """The server's next state, how many agents replied, and why others did not; agents' states change in place."""
    algorithm, engine, presence = setup.algorithm, setup.engine, setup.presence
    present, newcomers = presence.agents(t, setup.E), presence.joining(t)
    cohort = plan.cohort(setup.settings.seed, t, setup.E, setup.settings.fraction, present)
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


def _evaluate(setup: Runnable, server: State, states: State, t: int) -> tuple[Scores, Tensor | None, float]:
    """Scores of every agent on its own test data, labels, and the mean loss.

    Agents that have not joined yet or have left are evaluated with the state they hold.
    """
    with setup.engine.threads():
        scores = setup.engine.evaluate(setup.algorithm, server, states)
    for e in (~torch.isfinite(scores.loss)).nonzero().flatten().tolist():
        if e not in scores.dropped:
            raise _divergence(t, f"the loss of agent {e} is not finite", setup.settings)
    loss = average(scores.loss[torch.isfinite(scores.loss)])  # of the agents that sent theirs
    return scores, setup.engine.labels(setup.algorithm, server, states), loss


def _divergence(t: int, what: str, settings: Settings) -> Diverged:
    advice = f"try a smaller learning rate than train.lr = {settings.local.lr}"
    return Diverged(f"training diverged in round {t} ({what}): {advice}")
