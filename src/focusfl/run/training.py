"""run(): round after round, with history, checkpoints and resume."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import vmap

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import flatten, put, repeat, take, tree_map
from focusfl.data.federation import Federation
from focusfl.engines import Engine, Scores, choose, plan
from focusfl.engines.serial import predictor
from focusfl.fairness.metrics import average
from focusfl.models.task import InitialWeights, Task
from focusfl.run import checkpoint
from focusfl.run.answers import answers
from focusfl.run.history import History
from focusfl.run.presence import EVERYBODY, Presence
from focusfl.util.device import find_device, supports_bf16
from focusfl.util.errors import Diverged, InputError, Interrupted, require, require_choice

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Setup:
    """Everything that decides the numbers of a run."""

    algorithm: Algorithm
    fed: Federation
    model: Model
    train: Train
    rounds: int
    seed: int = 0
    engine: str = "auto"
    fraction: float = 1.0  # of the agents that take part in a round
    device: str = "cpu"
    precision: str = "float32"  # or bf16: products of local training, where there are units for it
    presence: Presence = EVERYBODY  # but for the agents that come or go

    @staticmethod
    def of(
        algorithm: Algorithm,
        fed: Federation,
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
    ) -> Setup:
        """With the data's own recipe for what is left out."""
        model = model or fed.recipe.model
        if model is None:
            raise InputError(f"the data {fed.name!r} has no model of its own: pass model=, any torch.nn.Module")
        rounds, seed = index(fed.recipe.rounds if rounds is None else rounds), index(seed)
        require("rounds", rounds, rounds >= 1, "1 or more")
        require("seed", seed, seed >= 0, "0 or more")
        require("fraction", fraction, 0 < fraction <= 1, "above 0 and at most 1")
        require_choice("precision", precision, ("float32", "bf16"))
        if precision == "bf16" and engine == "flower":
            raise InputError("precision = bf16 is for engine = serial or vectorised, not for flower")
        train, presence = train or fed.recipe.train, Presence.of(joins, leaves, fed.E, rounds)
        setup = Setup(algorithm, fed, model, train, rounds, seed, engine, fraction, device, precision, presence)
        setup.task.check(fed.training.x)
        _check_batches(setup)
        w = {k: v.unsqueeze(0) for k, v in setup.task.weights().items()}
        with torch.no_grad():
            algorithm.check(w, fed.classes, fed.E, predictor(setup.task, fed.training.x[:2]))
        _ = setup.runner  # an engine or device that cannot run this says so now
        return setup

    @cached_property
    def networks(self) -> InitialWeights:
        return InitialWeights(self.model, self.seed)

    @cached_property
    def task(self) -> Task:
        return Task(self.networks.network(), self.fed.classes)

    @cached_property
    def bf16(self) -> bool:
        """bfloat16 is asked for, and this machine is fast at it."""
        return self.precision == "bf16" and supports_bf16(self.place)

    @cached_property
    def runner(self) -> Engine:
        kind = choose(self.engine, self.task, self.fed, self.train)
        self.task.bf16 = self.bf16
        self.task.network.to(self.place)
        return kind(self.task, self.fed.to(self.place), self.train, self.rounds, self.seed)

    @cached_property
    def place(self) -> torch.device:
        return find_device(self.device)

    def start(self) -> tuple[State, State]:
        """The server's and the agents' states before the first round."""
        server = tree_map(lambda v: v.to(self.place), self.algorithm.start(self.networks, self.fed.E))
        return server, self.enrolled(server, self.fed.E)

    def enrolled(self, server: State, count: int) -> State:
        """The first states of so many agents."""
        return repeat(tree_map(lambda v: v.to(self.place), self.algorithm.enroll(server)), count)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all of it. The model counts with its weights, its attributes and, if need be, its answers."""
        said: list[object] = [
            repr(self.algorithm),
            self.fed.fingerprint,
            repr(self.train),
            self.rounds,
            self.seed,
        ]
        said += [self.runner.name, self.fraction, repr(self.task.network), self.task.attributes()]
        said += answers(self.task.network, self.fed.training.x)
        said += ["bf16"] * self.bf16
        said += [repr(self.presence)] * (self.presence != EVERYBODY)
        digest = hashlib.sha256(json.dumps(said).encode())
        network = {**dict(self.task.network.named_parameters()), **dict(self.task.network.named_buffers())}
        for k, v in sorted(network.items()):
            raw = v.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
            digest.update(k.encode() + raw.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Round:
    """After t of T rounds. The next round overwrites `states`."""

    t: int
    server: State
    states: State
    scores: Scores | None  # None: not evaluated after this round
    seconds: float  # of training since round 1, without evaluation

    @property
    def loss(self) -> float | None:
        """The mean over the agents, where it was evaluated."""
        return None if self.scores is None else average(self.scores.loss)


def run(
    setup: Setup,
    folder: Path | None = None,
    resume: bool = False,
    eval_every: int = 1,
    checkpoint_every: int = 10,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Round]:
    """Train; yields after every round. With a folder: history.jsonl and a checkpoint every k rounds.

    eval_every 0 evaluates never, else every so many rounds and after the last. When `stop()` turns true the
    round is finished, a checkpoint written and Interrupted raised.
    """
    try:
        yield from _rounds(setup, folder, resume, eval_every, checkpoint_every, stop)
    finally:
        setup.runner.close()


def _rounds(
    setup: Setup,
    folder: Path | None,
    resume: bool,
    eval_every: int,
    checkpoint_every: int,
    stop: Callable[[], bool],
) -> Iterator[Round]:
    algorithm, engine = setup.algorithm, setup.runner
    server, states = setup.start()
    begun = 0
    if folder is not None and resume and (folder / checkpoint.NAME).exists():
        begun, server, states = checkpoint.load(folder, setup.fingerprint, server, states, algorithm.room)
        server, states = (tree_map(lambda v: v.to(setup.place), tree) for tree in (server, states))
    history = History(folder, begun) if folder is not None else None
    seconds = history.seconds if history is not None else 0.0
    for t in range(begun, setup.rounds):
        clock = time.perf_counter()
        there = setup.presence.there(t, setup.fed.E)
        cohort = plan.cohort(setup.seed, t, setup.fed.E, setup.fraction, there)
        _welcome(setup, server, states, t)
        with engine.threads():
            found = engine.round(algorithm, server, states, t, cohort)
        who = torch.from_numpy(found.cohort).to(setup.place)
        server, dropped = algorithm.aggregate(server, found.add, found.each, who), found.dropped
        del found  # the sums: the next round's need the room
        done, last = t + 1, t + 1 == setup.rounds
        took = time.perf_counter() - clock
        seconds += took
        scores = None
        _check_finite(setup, done, {"server": server, "agents": states})
        if eval_every and (last or done % eval_every == 0):
            scores = evaluate(setup, server, states)
            _check_finite(setup, done, {}, scores)
        if history is not None:
            pi = labels(algorithm, server, states, setup.fed.E)
            history.write(done, scores, pi, took, dropped)
        stopping = stop() and not last
        if folder is not None and (last or stopping or done % checkpoint_every == 0):
            checkpoint.save(folder, setup.fingerprint, done, server, states)
        yield Round(done, server, states, scores, seconds)
        if stopping:
            raise Interrupted(f"stopped after round {done} of {setup.rounds}")
    if begun == setup.rounds:  # resumed, and there was nothing left to do
        scores = evaluate(setup, server, states) if eval_every else None
        yield Round(begun, server, states, scores, seconds)


def _welcome(setup: Setup, server: State, states: State, t: int) -> None:
    """Who joins in round t begins with a first state as the server would give it now."""
    agents = setup.presence.joining(t)
    if len(agents):
        put(states, torch.from_numpy(agents), setup.enrolled(server, len(agents)))
        setup.runner.joined(agents)


def evaluate(setup: Setup, server: State, states: State) -> Scores:
    """Every agent on its own test data, on the cpu; who has not come yet or is gone, with what it holds."""
    with setup.runner.threads():
        loss, acc = setup.runner.evaluate(setup.algorithm, server, states)
    return Scores(loss.cpu(), None if acc is None else acc.cpu())


@torch.no_grad()
def example_losses(setup: Setup, server: State, states: State) -> Tensor:
    """Every agent on each of its own test examples, agent after agent, on the cpu. [N]"""
    algorithm, fed, parts = setup.algorithm, setup.fed.to(setup.place), []
    with setup.runner.threads():
        for e in range(fed.E):
            x, y = fed.test(e)
            view = algorithm.downlink(server, torch.tensor(e))
            p = algorithm.predict(view, take(states, e), predictor(setup.task, x))
            parts.append(setup.task.score(p, y).loss)
    return torch.cat(parts).cpu()


def labels(algorithm: Algorithm, server: State, states: State, E: int) -> Tensor | None:
    """pi, [E, M], where the method has labels."""

    def label(state: State, e: Tensor) -> Tensor | None:
        return algorithm.label(algorithm.downlink(server, e), state)

    if label(take(states, 0), torch.tensor(0)) is None:
        return None
    pi = vmap(label)(states, torch.arange(E))
    return torch.as_tensor(pi).cpu()


def _check_batches(setup: Setup) -> None:
    """Batches of one example alone, where the network does not take such: at the end of an epoch they are joined
    to the batch before (engines/serial.py), but there may be none."""
    batch, rows = setup.train.batch, setup.fed.training
    small = (rows.sizes == 1).nonzero().flatten().tolist()
    if (small or batch == 1) and not setup.task.accepts_one_example(rows.x[:1]):
        why = f"agent {small[0]} has one training example" if small else "train.batch = 1"
        raise InputError(f"{why}, and the model's batch norm cannot train on one alone: it needs 2 or more")


def _check_finite(setup: Setup, t: int, state: State, scores: Scores | None = None) -> None:
    bad = [k for k, v in flatten(state).items() if not torch.isfinite(v).all()]
    if scores is not None and not torch.isfinite(scores.loss).all():
        bad.append(f"the loss of agent {int((~torch.isfinite(scores.loss)).nonzero()[0])}")
    if bad:
        advice = f"try a smaller learning rate than train.lr = {setup.train.lr}"
        raise Diverged(f"training diverged in round {t} ({bad[0]} is not finite): {advice}")
