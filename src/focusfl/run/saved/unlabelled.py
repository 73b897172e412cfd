"""A newcomer without labels: each model's own confidence takes the place of its loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from focusfl.core import AgentPart, Algorithm, Data, Models, State
from focusfl.core.train import Train
from focusfl.engines.one_agent import LocalAgent, predictor
from focusfl.models.task import Task
from focusfl.util.errors import InputError

RESAMPLES = 200  # of the examples, to say how sure an assignment is


class Unlabelled(LocalAgent):
    """A newcomer whose loss on an example is -log of the largest probability: 0 for a model that is certain.

    Args:
        task: The network and its loss.
        x: The examples, as the network takes them.
        train: The options of local training.
        seed: The seed of the run.
        rows: Which examples count, possibly several times; None for each once.
    """

    def __init__(self, task: Task, x: Tensor, train: Train, seed: int, rows: Tensor | None = None) -> None:
        super().__init__(task, Data(x, torch.zeros(len(x), dtype=torch.long)), train, 0.0, seed, 0, 0)
        self.rows = rows
        self.known: Tensor | None = None  # the losses of the first models that were asked for

    def resampled(self, rows: Tensor) -> Unlabelled:
        """Return the same newcomer with other counts of its examples."""
        other = Unlabelled(self.task, self.data.x, self.train, self.seed, rows)
        other.known = self.known
        return other

    def on(self, part: AgentPart) -> LocalAgent:
        none = Data(self.data.x[:0], self.data.y[:0])  # nothing can be validated without labels
        return self if part == "all" else LocalAgent(self.task, none, self.train, 0.0, self.seed, 0, 0)

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        return self.example_losses(w).mean(-1)

    def example_losses(self, w: Models) -> Tensor:
        if self.task.classes is None:
            raise InputError(
                "without labels a newcomer is assigned by confidence, and regression has none: give labels"
            )
        if self.known is None:
            with torch.no_grad():
                p = predictor(self.task, self.data.x)(w)
            self.known = -p.amax(-1).clamp_min(1e-12).log()
        return self.known if self.rows is None else self.known[:, self.rows]


def how_sure(algorithm: Algorithm, server: State, agent: Unlabelled, view: State, state: State) -> float | None:
    """Return the mean label, over resamples of the newcomer's examples, of the cluster with its largest label.

    Args:
        algorithm: The method.
        server: The server's state.
        agent: The newcomer.
        view: What it receives.
        state: Its state, with its labels.

    Returns:
        From 0 to 1; None if the method has no labels.
    """
    label = algorithm.label(view, state)
    if label is None or agent.known is None:
        return None
    n, chosen, rng = len(agent.data.x), int(label.argmax()), np.random.default_rng(agent.seed)
    total = 0.0
    for _ in range(RESAMPLES):
        other = algorithm.assign(server, agent.resampled(torch.from_numpy(rng.integers(0, n, n))))
        found = algorithm.label(*other)
        total += 0.0 if found is None else float(found[chosen])
    return total / RESAMPLES
