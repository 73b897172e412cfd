"""Try a model from a file: each agent's state must suit the method, and the network must predict."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor

from focusfl.algorithms import ALGORITHMS, Adapted
from focusfl.core import Agent, Models
from focusfl.core.tree import flatten, take
from focusfl.engines.one_agent import predictor
from focusfl.run.saved.trained import TrainedModel
from focusfl.util.errors import CannotRun, InputError


def try_model(model: TrainedModel) -> None:
    """Predict one example of zeros with every agent's state; a server's model takes a newcomer instead.

    Networks of the same shapes run only once, so that thousands of agents take seconds.

    Raises:
        InputError: Something does not fit. What is wrong in a method's state may also raise any other error.
    """
    _check_counts(model)
    tried = _Tried(model)
    if model.agents:
        for e in range(len(model.agents)):
            tried.predict(*model.state_of(e))
    elif type(model.algorithm) in ALGORITHMS.values():  # a user's own method may ask more of a newcomer
        with suppress(CannotRun):
            tried.predict(*model.algorithm.assign(model.server, cast(Agent, _Newcomer(tried))))


def _check_counts(model: TrainedModel) -> None:
    """Refuse a number of models that no tensor has: methods allocate by it."""
    shapes = [v.shape for v in flatten({"server": model.server, "agents": model.states}).values()]
    for name in ("M", "most"):
        algorithm = model.algorithm.inner if isinstance(model.algorithm, Adapted) else model.algorithm
        count: Any = getattr(algorithm, name, None)
        if isinstance(count, int) and not model.received and not any(count in shape for shape in shapes):
            raise InputError(f"its method has {name} = {count}, but no tensor has that length")


class _Tried:
    """Predictions that say only whether they are possible.

    Args:
        model: The model.
    """

    def __init__(self, model: TrainedModel) -> None:
        self.model, self.known, shape = model, dict[Any, Tensor](), model.inputs.shape
        self.dimensions = {k: w.dim() for k, w in model.task.weights().items()}
        kind = torch.long if model.inputs.tokens else torch.float32
        self.x = torch.zeros(1, *shape, dtype=kind) if shape else None  # a server does not know the shape

    def predict(self, view: Any, state: Any) -> None:
        """Predict with the state of one agent."""
        with torch.no_grad():
            found = list(self.model.algorithm.predict(view, state, self.h).shape)
        wanted = [1, self.model.classes or 1]
        if found != wanted:
            raise InputError(f"it predicts {found} for one example, expected {wanted}")

    def h(self, w: Models, only: Tensor | None = None) -> Tensor:
        """Return zeros in the shape of the predictions of these networks; the first of its shapes is run."""
        if {k: v.dim() - 1 for k, v in w.items()} != self.dimensions or len({len(v) for v in w.values()}) != 1:
            raise InputError("its models are not those of its network")
        shapes = tuple((v.shape[1:], v.dtype) for v in w.values())
        if shapes not in self.known:
            self.known[shapes] = self._run(w)
        return self.known[shapes].expand(len(next(iter(w.values()))), -1, -1)

    def _run(self, w: Models) -> Tensor:
        if self.x is None:
            return torch.zeros(1, 1, self.model.classes or 1)
        return torch.zeros_like(predictor(self.model.task, self.x)(take(w, slice(0, 1))))


class _Newcomer:
    """A newcomer with one example, whose loss is 0.

    Args:
        tried: Says whether models are possible.
    """

    def __init__(self, tried: _Tried) -> None:
        self.tried, self.n = tried, torch.tensor(1.0)

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        return self.tried.h(w)[:, 0, 0]

    def example_losses(self, w: Models) -> Tensor:
        return self.tried.h(w)[:, :, 0]

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(-1)
