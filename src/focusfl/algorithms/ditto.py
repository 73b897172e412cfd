"""Ditto: a personal model per agent, regularised towards the global one (Li et al. 2021, arXiv 2012.04221).

server  {"w": [1, ...]}      the global model, as in FedAvg with a plain mean
agent   {"v": [1, ...]}      its own model, which it predicts with
upload  add {"theta": [1, ...], "agents": []}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from focusfl.core import (
    Agent,
    Algorithm,
    Contribution,
    Networks,
    Predictor,
    Pull,
    State,
    Upload,
    mean_or_keep,
    weighted_contribution,
)
from focusfl.util.errors import require


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Every agent trains a model of its own, which is pulled towards the global model.

    Args:
        lam: The strength of the pull: v <- v - eta (grad F(v) + lam (v - w)). With 0 every agent trains alone.
    """

    lam: float = 1.0

    name: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al. 2021, arXiv 2012.04221"
    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require("ditto.lam", self.lam, lambda v: v >= 0, "0 or more")

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(1)}

    def enroll(self, server: State) -> State:
        return {"v": server["w"]}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        theta = agent.sgd(server["w"])
        v = agent.sgd(state["v"], pull=Pull(server["w"], self.lam))
        return {"v": v}, Upload(add={"theta": theta, "agents": torch.ones_like(agent.n)}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"w": mean_or_keep(server["w"], add["theta"], add["agents"].reshape(1))}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight = upload.add["agents"].reshape(1)
        return weighted_contribution(server["w"], upload.add["theta"], weight, torch.tensor(float(agents)))

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(state["v"])[0]
