"""FedProx: FedAvg with a proximal term (Li et al. 2020, arXiv 1812.06127).

server  {"w": [1, ...]}
agent   nothing
upload  add {"theta": [1, ...], "n": []}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from focusfl.algorithms.fedavg import FedAvg
from focusfl.core import Agent, Pull, State, Upload, scale
from focusfl.util.errors import require


@dataclass(frozen=True, repr=False)
class FedProx(FedAvg):
    """Agents train as in FedAvg, with a proximal term that keeps them near the shared model.

    Args:
        mu: The strength of the term: theta <- theta - eta (grad F + mu (theta - w)). The paper uses 1, 0.1 or 0.01.
    """

    mu: float = 0.1

    name: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020, arXiv 1812.06127"

    def __post_init__(self) -> None:
        require("fedprox.mu", self.mu, lambda v: v >= 0, "0 or more")

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        theta = agent.sgd(server["w"], pull=Pull(server["w"], self.mu))
        n = self.weight(agent)
        return state, Upload(add={"theta": scale(theta, n), "n": n}, each={})
