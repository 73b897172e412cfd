"""FOCUS: EM clustering of agents (Chu et al. 2023, arXiv 2207.10265, Algorithm 1).

server  {"w": [M, ...]}      cluster models
agent   {"log_pi": [M]}      log soft labels of agent e; stays with it
upload  add {"theta": [M, ...], "pi": [M]}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from focusfl.core import (
    Agent,
    Algorithm,
    Networks,
    Predictor,
    State,
    Upload,
    mean_or_keep,
    mixed,
    scale_,
)
from focusfl.errors import choice, require, whole


@dataclass(frozen=True)
class Focus(Algorithm):
    """EM clustering of agents: M models, soft labels pi_em, mixture predictions.

    M            how many clusters
    init         "tied": one random network, M copies, noise added; "independent": M random networks
    noise        of "tied", in standard deviations of each parameter tensor
    prune        a model whose label is at most this is not trained by that agent in that round; one whose label
                 is e^20 times smaller still, many rounds from mattering, is judged on a tenth of the examples
    weight_by_n  average with n_e pi_em (which eq. 9 implies) instead of pi_em (eq. 6)
    """

    M: int = 3
    init: Literal["tied", "independent"] = "tied"
    noise: float = 0.01
    prune: float = 1e-4
    weight_by_n: bool = False

    name: ClassVar[str] = "FOCUS"
    paper: ClassVar[str] = "Chu et al. 2023, arXiv 2207.10265"

    def __post_init__(self) -> None:
        whole("focus.M", self.M, 1)
        choice("focus.init", self.init, ("tied", "independent"))
        require("focus.noise", self.noise, self.noise >= 0, "0 or more")
        require("focus.prune", self.prune, 0 <= self.prune < 1 / self.M, "from 0 to below 1/M")

    def start(self, networks: Networks, E: int) -> State:
        tied = self.init == "tied"
        return {"w": networks.copies(self.M, self.noise) if tied else networks.independent(self.M)}

    def enroll(self, server: State) -> State:
        return {"log_pi": torch.full((self.M,), -math.log(self.M))}  # pi_em = 1/M

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        far = state["log_pi"] < (math.log(self.prune) - 20 if self.prune else -math.inf)
        log_pi = e_step(state["log_pi"], agent.losses(server["w"], rough=far))  # E step, eq. 8
        pi = log_pi.exp()
        theta = agent.sgd(server["w"], only=pi > self.prune)  # M step, eqs. 4-5
        share = pi * agent.n if self.weight_by_n else pi
        return {"log_pi": log_pi}, Upload(add={"theta": scale_(theta, share), "pi": share}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"w": mean_or_keep(server["w"], add["theta"], add["pi"])}  # eq. 6

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return mixed(state["log_pi"].exp(), server["w"], h)  # eq. 7

    def label(self, server: State, state: State) -> Tensor:
        return torch.as_tensor(state["log_pi"]).exp()

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        losses = agent.losses(server["w"])
        return server, {"log_pi": e_step(torch.zeros_like(losses), losses)}  # from pi = 1/M


def e_step(log_pi: Tensor, losses: Tensor) -> Tensor:
    """Eq. 8 in logs: pi_m <- pi_m exp(-loss_m) / sum. A label may fall to 1e-300 and come back."""
    return torch.log_softmax(log_pi - losses, dim=-1)
