"""Any method, with some agents that send wrong updates.

server  the state of the attacked method
down    what the attacked method sends down, and {"factor": []} of this agent
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from focusfl.core import Agent, AgentPart, Models, SgdOptions, State, Upload, Wrapper, row
from focusfl.core.tree import tree_map


@dataclass(frozen=True)
class Attacked(Wrapper):
    """A method under attack: agent e's local training ends at w + factor_e (theta - w) instead of theta.

    Args:
        inner: The method.
        factors: One factor per agent. 1 is an honest agent, 0 one that sends back the model it received, 10 one
            that exaggerates its update, and -1 one that flips its sign.
    """

    factors: tuple[float, ...]

    def downlink(self, server: State, e: Tensor) -> State:
        return {**self.inner.downlink(server, e), **row({"factor": torch.tensor(self.factors)}, e)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        factor = server["factor"]
        after, upload = self.inner.local(server, state, Attacker(agent, factor))
        return _usable(state, after, factor == 1), upload


class Attacker:
    """An agent whose training goes wrong; its losses and counts are true."""

    def __init__(self, agent: Agent, factor: Tensor) -> None:
        self.agent, self.factor = agent, factor
        self.n, self.lr, self.trainable, self.log_loss = agent.n, agent.lr, agent.trainable, agent.log_loss

    def on(self, part: AgentPart) -> Attacker:
        return Attacker(self.agent.on(part), self.factor)

    @property
    def plain(self) -> Attacker:
        return self if self.agent.plain is self.agent else Attacker(self.agent.plain, self.factor)

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        return self.agent.losses(w, estimate)

    def example_losses(self, w: Models) -> Tensor:
        return self.agent.example_losses(w)

    def mean(self, values: Tensor) -> Tensor:
        return self.agent.mean(values)

    def class_counts(self) -> Tensor:
        return self.agent.class_counts()

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        theta = self.agent.sgd(w, **options)
        return theta | {
            k: torch.lerp(w[k], theta[k], self.factor.to(w[k])) for k in self.trainable
        }  # exact at 0 and 1


def _usable(before: State, after: State, honest: Tensor) -> State:
    """Return the new state, or the old one where an attacker's new numbers are not finite."""

    def one(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(honest | torch.isfinite(new).all(), new, old)

    kept: State = tree_map(one, before, after)
    return kept
