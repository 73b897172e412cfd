"""The server of a deployment: the rounds over Flower's grid, a checkpoint after each, and numbers at the end.

OUT/experiment.json, results.json      as `focusfl compare` writes them: `focusfl report OUT` shows them
OUT/runs/NAME-seed0/                   history.jsonl (and who was left out, and why), checkpoint, result.json
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from focusfl import checkpoint, files
from focusfl.bayes import Bayes
from focusfl.core import Algorithm, State
from focusfl.engines import Answers, Scores, plan
from focusfl.engines.flower.exchange import Exchange, TooFew
from focusfl.engines.flower.roll import Roll
from focusfl.engines.flower.secure import fits, secure_round
from focusfl.errors import Diverged, require
from focusfl.history import History, read, rounds_to
from focusfl.result import clustered, described, scored
from focusfl.task import Fresh, Task
from focusfl.train import Train
from focusfl.training import Model
from focusfl.tree import flatten

SAY = logging.getLogger("focusfl")
TRIES = 5  # at a round for which too few answer


@dataclass(frozen=True)
class Run:
    """What the server must know. The nodes have their data and, of this, algorithm, model and training options."""

    algorithm: Algorithm
    model: Model
    agents: int  # E
    rounds: int
    classes: int | None  # None: regression
    train: Train = field(default_factory=Train)
    seed: int = 0
    fraction: float = 1.0  # of the agents that take part in a round
    minimum: int = 1  # answers without which a round does not count
    timeout: float = 3600.0  # seconds for an answer
    wait: float = 300.0  # seconds for the agents to come, at the start and when too few answer
    eval_every: int = 1
    best: Literal["agent", "none"] = "agent"  # what excess risk is measured against: each agent alone, or nothing
    out: Path | None = None
    resume: bool = False
    name: str = "federation"  # of the data, in the report
    secure: bool = False  # the server sees only sums of the agents' uploads

    def __post_init__(self) -> None:
        require("agents", self.agents, self.agents >= 2, "two or more, since fairness compares agents")
        require("rounds", self.rounds, self.rounds >= 1, "1 or more")
        require("seed", self.seed, self.seed >= 0, "0 or more")
        require("fraction", self.fraction, 0 < self.fraction <= 1, "above 0 and at most 1")
        require("minimum", self.minimum, 1 <= self.minimum <= self.agents, f"from 1 to the {self.agents} agents")
        require("timeout", self.timeout, self.timeout > 0, "seconds, more than 0")
        require("wait", self.wait, self.wait >= 0, "seconds, 0 or more")
        require("eval_every", self.eval_every, self.eval_every >= 1, "1 or more")

    @cached_property
    def networks(self) -> Fresh:
        return Fresh(self.model, self.seed)

    @cached_property
    def key(self) -> str:
        """Of the run: what decides its numbers. Nodes keep their states under it."""
        said = [
            repr(self.algorithm),
            repr(self.train),
            self.agents,
            self.rounds,
            self.seed,
            self.fraction,
            self.name,
        ]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]

    def aggregated(self, server: State, answers: Answers, t: int) -> State:
        """The server's next state, if its numbers are finite."""
        new = self.algorithm.aggregate(server, answers.add, answers.each, torch.from_numpy(answers.cohort))
        bad = [k for k, v in flatten(new).items() if not torch.isfinite(v).all()]
        if bad:
            advice = f"try a smaller learning rate than {self.train.lr}"
            raise Diverged(f"training diverged in round {t + 1} ({bad[0]} is not finite): {advice}")
        return new

    @property
    def folder(self) -> Path | None:
        return None if self.out is None else self.out / "runs" / f"{self.method}-seed{self.seed}"

    @property
    def method(self) -> str:
        return type(self.algorithm).__name__.lower()


def server_app(run: Run | Callable[[Context], Run]) -> ServerApp:
    """The ServerApp that trains, evaluates and writes the results. `run` may depend on the context."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, run(context) if callable(run) else run)

    return app


def exchange(grid: Grid, run: Run, say: Callable[[str], None]) -> Exchange:
    """The talk with the nodes, before it begins."""
    shared = run.algorithm, run.train, run.classes, run.agents, run.rounds, run.seed, run.key
    roll = Roll(grid, *shared, run.timeout, say, run.secure)
    return Exchange(roll, Task(run.networks.network(), run.classes), run.minimum)


def serve(grid: Grid, run: Run, say: Callable[[str], None] = SAY.warning) -> dict[str, Any]:
    """All rounds; the row of results.json."""
    server, begun = _begin(run)
    folder = run.folder
    history = History(folder, begun) if folder is not None else None
    talk = exchange(grid, run, say)
    if run.secure:
        fits(talk, server)
    talk.roll.gather(begun, run.algorithm.enroll(server), begin=begun == 0, wait=run.wait)
    say(f"{len(talk.roll.nodes)} of {run.agents} agents are here, {run.rounds - begun} rounds to go")
    scores, pi, seconds = None, None, 0.0
    for t in range(begun, run.rounds):
        clock = time.perf_counter()
        answers = _round(talk, run, server, t)
        server = run.aggregated(server, answers, t)
        took = time.perf_counter() - clock
        seconds += took
        if (t + 1) % run.eval_every == 0 or t + 1 == run.rounds:
            scores, pi, _ = talk.evaluate(server, run.rounds)
        if folder is not None and history is not None:
            there = scores if scores is not None and torch.isfinite(scores.loss).all() else None
            history.write(t + 1, there, pi, took, answers.dropped)
            checkpoint.save(folder, run.key, t + 1, server, {})
        say(f"round {t + 1} of {run.rounds}: {_told(scores)}, {len(answers.cohort)} agents, {took:.1f} s")
    if scores is None:
        scores, pi, _ = talk.evaluate(server, run.rounds)
    return _result(run, talk, scores, pi, seconds)


def _begin(run: Run) -> tuple[State, int]:
    """The server's state to start from: the first, or, resumed, that of the last checkpoint."""
    server = run.algorithm.start(run.networks, run.agents)
    if run.folder is None:
        return server, 0
    files.make_folder(run.folder)
    if run.resume and (run.folder / checkpoint.NAME).exists():
        begun, server, _ = checkpoint.load(run.folder, run.key, server, {})
        return server, begun
    return server, 0


def _round(talk: Exchange, run: Run, server: State, t: int) -> Answers:
    """Who joined since is taken in first. Where too few answer, wait for nodes and ask again."""
    cohort = plan.cohort(run.seed, t, run.agents, run.fraction)
    for left in reversed(range(TRIES)):
        talk.roll.gather(t, run.algorithm.enroll(server), begin=t == 0, wait=0.0)
        try:
            return secure_round(talk, server, t, cohort) if run.secure else talk.round(server, t, cohort)
        except TooFew as why:
            if not left:
                raise TooFew(
                    f"{why}. The rounds before are kept: start the nodes and run again with resume"
                ) from why
            talk.roll.say(f"{why}; waiting for nodes, then asking again")
            talk.roll.gather(t, run.algorithm.enroll(server), begin=t == 0, wait=run.wait)
    raise AssertionError


def _told(scores: Scores | None) -> str:
    if scores is None:
        return "not evaluated"
    loss = f"mean loss {scores.loss.nanmean():.4f}"
    return loss if scores.acc is None else f"{loss}, accuracy {scores.acc.nanmean():.3f}"


def _result(run: Run, talk: Exchange, scores: Scores, pi: Tensor | None, seconds: float) -> dict[str, Any]:
    """FAA from numbers alone: each agent's loss, and the loss it would have alone."""
    best = talk.best() if run.best == "agent" else torch.zeros(run.agents)
    answered = torch.isfinite(scores.loss) & torch.isfinite(best)
    if not answered.all():
        absent = (~answered).nonzero().flatten().tolist()
        talk.roll.say(f"agents {absent} did not send their last numbers: they are not in the result")
    seen = Scores(scores.loss[answered], None if scores.acc is None else scores.acc[answered])
    label = None if pi is None else pi[answered]
    about = {"data": run.name, "seed": run.seed, "rounds": run.rounds, "engine": "flower"}
    clusters = clustered(run.algorithm, label, int(answered.sum()))
    row = {"method": run.method} | described(run.algorithm) | about
    row |= scored(seen, Bayes(best[answered], run.best), label, clusters, None)
    row |= {"agents": answered.nonzero().flatten().tolist(), "train": asdict(run.train), "seconds": seconds}
    if run.out is not None and run.folder is not None:
        row["rounds_to"] = rounds_to(read(run.folder))
        files.write_json(run.folder / "result.json", row)
        files.write_json(run.out / "results.json", [row])
        said = {"data": {"name": run.name}, "algorithms": [run.method], "seeds": [run.seed], "rounds": run.rounds}
        files.write_json(run.out / "experiment.json", said)
    talk.roll.say(
        f"FAA {row['faa']:.4f}, mean loss {row['avg_loss']:.4f}, agnostic loss {row['agnostic_loss']:.4f}"
    )
    return row
