"""Any method, with some agents that send wrong updates.

server  the state of the attacked method
down    what the attacked method sends down, and {"factor": []} of this agent
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from focusfl.core import Agent, Algorithm, Models, Networks, Predictor, Pull, State, Upload, row
from focusfl.core.tree import tree_map


@dataclass(frozen=True)
class Attacked(Algorithm):
    """A method under attack: agent e's local training ends at w + factor_e (theta - w) instead of theta.

    Args:
        inner: the method.
        factors: one factor per agent. 1 is an honest agent, 0 one that sends back the model it received, 10 one
            that exaggerates its update, and -1 one that flips its sign.
    """

    inner: Algorithm
    factors: tuple[float, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def paper(self) -> str:  # type: ignore[override]
        return self.inner.paper

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.inner.personal

    @property
    def shows(self) -> bool:
        return self.inner.shows

    def start(self, networks: Networks, E: int) -> State:
        return self.inner.start(networks, E)

    def enroll(self, server: State) -> State:
        return self.inner.enroll(server)

    def downlink(self, server: State, e: Tensor) -> State:
        return {**self.inner.downlink(server, e), **row({"factor": torch.tensor(self.factors)}, e)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        factor = server["factor"]
        after, upload = self.inner.local(server, state, Attacker(agent, factor))
        return _keep_finite(state, after, factor == 1), upload

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return self.inner.aggregate(server, add, each, cohort)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return self.inner.predict(server, state, h)

    def label(self, server: State, state: State) -> Tensor | None:
        return self.inner.label(server, state)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return self.inner.assign(server, agent)

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        self.inner.check(w, classes, E, h)

    def first(self) -> Algorithm | None:
        first = self.inner.first()
        return None if first is None else Attacked(first, self.factors)

    def given(self, clusters: Tensor) -> Algorithm:
        return Attacked(self.inner.given(clusters), self.factors)


class Attacker:
    """An agent whose update is multiplied by `factor`. Everything else it reports is true."""

    def __init__(self, agent: Agent, factor: Tensor) -> None:
        self.agent, self.factor = agent, factor
        self.n, self.lr, self.learnt = agent.n, agent.lr, agent.learnt

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        return self.agent.losses(w, rough)

    def example_losses(self, w: Models) -> Tensor:
        return self.agent.example_losses(w)

    def mean(self, values: Tensor) -> Tensor:
        return self.agent.mean(values)

    def class_counts(self) -> Tensor:
        return self.agent.class_counts()

    def sgd(
        self,
        w: Models,
        pull: Pull | None = None,
        only: Tensor | None = None,
        weights: Tensor | None = None,
        freeze: Collection[str] = (),
    ) -> Models:
        theta = self.agent.sgd(w, pull, only, weights, freeze)
        return theta | {
            k: torch.lerp(w[k], theta[k], self.factor.to(w[k])) for k in self.learnt
        }  # exact at 0 and 1


def _keep_finite(before: State, after: State, honest: Tensor) -> State:
    """Undo what made an attacker's own state infinite, so that the run continues for the others."""

    def choose(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(honest | torch.isfinite(new).all(), new, old)

    state: State = tree_map(choose, before, after)
    return state
