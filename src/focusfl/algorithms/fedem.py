"""FedEM: agents' data as mixtures of M distributions (Marfoq et al. 2021, arXiv 2108.10252).

server  {"w": [M, ...]}      component models
agent   {"pi": [M]}          shares of the components in its data; they stay with the agent
upload  add {"theta": [M, ...], "n": []}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from focusfl.algorithms.weighting import Weighting
from focusfl.core import (
    Agent,
    Algorithm,
    Contribution,
    Networks,
    Predictor,
    State,
    Upload,
    clustered_start,
    mean_or_keep,
    mixture,
    scale,
    weighted_contribution,
)
from focusfl.util.errors import require_choice, require_integer


@dataclass(frozen=True, repr=False)
class FedEM(Weighting, Algorithm):
    """Each agent's data is a mixture of M distributions, and the agent predicts with a mixture of M models.

    Args:
        M: The number of components.
        init: "independent" makes M random networks, as in the paper; "tied" makes M copies of one, with 1 % noise.
    """

    M: int = 3
    init: Literal["independent", "tied"] = "independent"

    name: ClassVar[str] = "FedEM"
    paper: ClassVar[str] = "Marfoq et al. 2021, arXiv 2108.10252"

    def __post_init__(self) -> None:
        require_integer("fedem.M", self.M, 1)
        require_choice("fedem.init", self.init, ("independent", "tied"))

    def start(self, networks: Networks, E: int) -> State:
        return {"w": clustered_start(networks, self.M, self.init)}

    def enroll(self, server: State) -> State:
        return {"pi": torch.full((self.M,), 1 / self.M)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        q = e_step(state["pi"], agent.example_losses(server["w"]))  # [M, n]
        theta = agent.sgd(server["w"], weights=q)
        n = self.weight(agent)
        return {"pi": agent.mean(q)}, Upload(add={"theta": scale(theta, n), "n": n}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"w": mean_or_keep(server["w"], add["theta"], add["n"].repeat(self.M))}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight = upload.add["n"].reshape(1)
        total = self.total_weight(n, agents)
        return weighted_contribution(server["w"], upload.add["theta"], weight, total)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return mixture(state["pi"], server["w"], h)

    def label(self, server: State, state: State) -> Tensor:
        return torch.as_tensor(state["pi"])

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        losses = agent.example_losses(server["w"])
        return server, {"pi": agent.mean(e_step(torch.full_like(losses[:, 0], 1 / self.M), losses))}


def e_step(pi: Tensor, losses: Tensor) -> Tensor:
    """Return q_m ~ pi_m exp(-loss_m) of each example, [M, n], computed in logs because losses may be large."""
    return torch.softmax(pi.clamp_min(1e-30).log().unsqueeze(-1) - losses, 0)
