"""Run: what the server of a deployment must know."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import flatten
from focusfl.engines import Answers, plan
from focusfl.models.task import InitialWeights, Task
from focusfl.run.training import Model
from focusfl.util.errors import Diverged, InputError, require, require_choice


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
        cohort = len(plan.cohort(self.seed, 0, self.agents, self.fraction))  # of a round
        least = 2 if self.secure else 1
        within = f"from {least} to the {cohort} agents of a round"
        require("minimum", self.minimum, cohort >= least and 1 <= self.minimum <= cohort, within)
        require_choice("best", self.best, ("agent", "none"))
        if self.resume and self.out is None:
            raise InputError("resume = true: there is nothing to resume without out, the folder of the results")
        require("timeout", self.timeout, self.timeout > 0, "seconds, more than 0")
        require("wait", self.wait, self.wait >= 0, "seconds, 0 or more")
        require("eval_every", self.eval_every, self.eval_every >= 1, "1 or more")

    @cached_property
    def networks(self) -> InitialWeights:
        return InitialWeights(self.model, self.seed)

    def key(self, nonce: str) -> str:
        """Of one run, told from others with the same settings by its nonce. Nodes keep their states under it."""
        network = repr(self.networks.network())
        said: list[object] = [repr(self.algorithm), repr(self.train), network, self.classes, nonce]
        said += [self.agents, self.rounds, self.seed, self.fraction, self.secure]
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

    def task(self) -> Task:
        return Task(self.networks.network(), self.classes)

    @property
    def method(self) -> str:
        return type(self.algorithm).__name__.lower()
