"""What an upload of this round must look like: a dry run of `local` by an agent without data."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from focusfl.core import AgentPart, Algorithm, Models, SgdOptions, State, Upload
from focusfl.models.task import Task


class EmptyAgent:
    """core.Agent with one example whose loss is 0; training leaves the models as they are."""

    def __init__(self, task: Task, lr: float) -> None:
        self.classes, self.lr = task.classes, lr
        self.trainable, self.log_loss = tuple(task.parameters), task.log_loss
        self.n = torch.tensor(1.0)

    def on(self, part: AgentPart) -> EmptyAgent:
        return self

    @property
    def plain(self) -> EmptyAgent:
        return self

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        return torch.zeros(len(next(iter(w.values()))))

    def example_losses(self, w: Models) -> Tensor:
        return torch.zeros(len(next(iter(w.values()))), 1)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(-1)

    def class_counts(self) -> Tensor:
        return torch.zeros(self.classes or 0)

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        return dict(w)  # the caller may change it


def expected(algorithm: Algorithm, server: State, task: Task, lr: float) -> tuple[State, Upload]:
    """Return an agent's new state and its upload, whose names, shapes and types are right but not their numbers."""
    view = algorithm.downlink(server, torch.tensor(0))
    return algorithm.local(view, algorithm.enroll(server), EmptyAgent(task, lr))
