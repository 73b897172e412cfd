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
    pi: Tensor | None  # [E, M] labels, where it was evaluated and the method has them
    seconds: float  # of training since round 1, without evaluation
    took: float  # seconds of this round
    cohort: int  # how many agents answered
    loss: float | None  # the mean over the agents, where it was evaluated


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
    """Train; yields after every round.

    Args:
        setup: The run.
        folder: Where history.jsonl and checkpoints go; None: nothing is written.
        resume: Continue from the checkpoint in the folder, if there is one.
        eval_every: Instead of the settings': every so many rounds and after the last; 0: never.
        stop: When this turns true the round is finished, a checkpoint is written and Interrupted is raised.

    Raises:
        Diverged: If a number is no longer finite.
        Interrupted: If `stop()` was true.
    """
    try:
        yield from _rounds(
            setup, folder, resume, setup.settings.eval_every if eval_every is None else eval_every, stop
        )
    finally:
        setup.engine.close()


def _rounds(setup: Runnable, folder: Path | None, resume: bool, eval_every: int, stop: Stop) -> Iterator[Round]:
    algorithm, engine, settings, T = setup.algorithm, setup.engine, setup.settings, setup.settings.T
    server, states = setup.start()
    begun = 0
    if folder is not None and resume and (folder / checkpoint.NAME).exists():
        begun, server, states = checkpoint.load(folder, setup.fingerprint, server, states, algorithm.max_models)
        server, states = (tree_map(lambda v: v.to(setup.device), tree) for tree in (server, states))
    history = History(folder, begun)
    for t in range(begun, T):
        clock = time.perf_counter()
        cohort = plan.cohort(settings.seed, t, setup.E, settings.fraction, setup.presence.agents(t, setup.E))
        newcomers = setup.presence.joining(t)
        if len(newcomers):  # they begin with a first state as the server would give it now
            put(states, torch.from_numpy(newcomers), setup.enrolled(server, len(newcomers)))
            engine.agents_joined(newcomers)
        with engine.threads():
            replies = engine.round(algorithm, server, states, t, cohort)
        who, dropped = torch.from_numpy(replies.cohort).to(setup.device), dict(replies.dropped)
        server = algorithm.aggregate(server, replies.add, replies.each, who)
        del replies  # the sums: the next round needs the memory
        done, last, took = t + 1, t + 1 == T, time.perf_counter() - clock
        _check_finite(done, {"server": server, "agents": states}, settings)
        scores, pi = None, None
        if eval_every and (last or done % eval_every == 0):
            scores, pi = _evaluated(setup, server, states, done)
            dropped |= {e: f"evaluation: {why}" for e, why in scores.dropped.items() if e not in dropped}
        history.write(done, scores, pi, took, dropped)
        stopping = stop() and not last
        if folder is not None and (last or stopping or done % settings.checkpoint_every == 0):
            checkpoint.save(folder, setup.fingerprint, done, server, states)
        loss = None if scores is None else average(scores.loss)
        yield Round(done, server, states, scores, pi, history.seconds, took, len(who), loss)
        if stopping:
            raise Interrupted(f"stopped after round {done} of {T}")
    if begun == T:  # resumed, and there was nothing left to do
        scores, pi = _evaluated(setup, server, states, begun) if eval_every else (None, None)
        loss = None if scores is None else average(scores.loss)
        yield Round(begun, server, states, scores, pi, history.seconds, 0.0, 0, loss)


def _evaluated(setup: Runnable, server: State, states: State, t: int) -> tuple[Scores, Tensor | None]:
    """Every agent on its own test data, and the labels. Who has not joined yet or has left counts with what it
    holds."""
    with setup.engine.threads():
        scores = setup.engine.evaluate(setup.algorithm, server, states)
    for e in (~torch.isfinite(scores.loss)).nonzero().flatten().tolist():
        if e not in scores.dropped:
            raise _diverged(t, f"the loss of agent {e}", setup.settings)
    return scores, setup.engine.labels(setup.algorithm, server, states)


def _check_finite(t: int, state: State, settings: Settings) -> None:
    bad = [k for k, v in flatten(state).items() if not torch.isfinite(v).all()]
    if bad:
        raise _diverged(t, bad[0], settings)


def _diverged(t: int, what: str, settings: Settings) -> Diverged:
    advice = f"try a smaller learning rate than train.lr = {settings.local.lr}"
    return Diverged(f"training diverged in round {t} ({what} is not finite): {advice}")
