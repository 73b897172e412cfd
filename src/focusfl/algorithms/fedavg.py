"""FedAvg: federated averaging (McMahan et al. 2017, arXiv 1602.05629).

server  {"w": [1, ...]}
agent   nothing
upload  add {"theta": [1, ...], "n": []}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    mean_or_keep,
    scale,
    weighted_contribution,
)


@dataclass(frozen=True, repr=False)
class FedAvg(Weighting, Algorithm):
    """All agents share one model: the mean of their models, weighted by their numbers of examples or alike."""

    name: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017, arXiv 1602.05629"

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(1)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        theta = agent.sgd(server["w"])
        n = self.weight(agent)
        return state, Upload(add={"theta": scale(theta, n, in_place=True), "n": n}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"w": mean_or_keep(server["w"], add["theta"], add["n"].reshape(1))}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight = upload.add["n"].reshape(1)
        total = self.total_weight(n, agents)
        return weighted_contribution(server["w"], upload.add["theta"], weight, total)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["w"])[0]
