"""IFCA: iterative federated clustering (Ghosh et al. 2020, arXiv 2006.04088).

server  {"w": [M, ...]}      cluster models
agent   {"pi": [M]}          1 for its cluster, else 0
upload  add {"theta": [M, ...], "agents": [M]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

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
    one_hot,
    scale,
    weighted_contribution,
)
from focusfl.util.errors import require_choice, require_integer


@dataclass(frozen=True)
class IFCA(Algorithm):
    """Every agent trains the one of M models that has the smallest loss on its data.

    Args:
        M: The number of clusters.
        init: "independent" makes M random networks, as in the paper; "tied" makes M copies of one, with 1 % noise.
    """

    M: int = 3
    init: Literal["independent", "tied"] = "independent"

    name: ClassVar[str] = "IFCA"
    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv 2006.04088"

    def __post_init__(self) -> None:
        require_integer("ifca.M", self.M, 1)
        require_choice("ifca.init", self.init, ("independent", "tied"))

    def start(self, networks: Networks, E: int) -> State:
        return {"w": clustered_start(networks, self.M, self.init)}

    def enroll(self, server: State) -> State:
        return {"pi": one_hot(torch.tensor(0), self.M)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        pi = one_hot(agent.losses(server["w"]).argmin(), self.M)
        theta = agent.sgd(server["w"], only=pi > 0)
        return {"pi": pi}, Upload(add={"theta": scale(theta, pi), "agents": pi}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"w": mean_or_keep(server["w"], add["theta"], add["agents"])}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight = upload.add["agents"]
        return weighted_contribution(server["w"], upload.add["theta"], weight, torch.tensor(float(agents)))

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return mixture(state["pi"], server["w"], h)

    def label(self, server: State, state: State) -> Tensor:
        return torch.as_tensor(state["pi"])

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return server, {"pi": one_hot(agent.losses(server["w"]).argmin(), self.M)}
