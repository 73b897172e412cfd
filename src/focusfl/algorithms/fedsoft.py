"""FedSoft: soft clustering with a proximal term (Ruan and Joe-Wong 2022, arXiv 2112.06053).

server  {"c": [M, ...]}                       cluster centres
agent   {"theta": [1, ...], "u": [M]}         its model, kept from round to round; its share of each cluster
upload  add {"c": [M, ...], "weight": [M]}
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
    Models,
    Networks,
    Predictor,
    Pull,
    State,
    Upload,
    clustered_start,
    mean_or_keep,
    one_hot,
    scale,
    weighted_contribution,
)
from focusfl.util.errors import require, require_choice, require_integer


@dataclass(frozen=True, repr=False)
class FedSoft(Weighting, Algorithm):
    """Every agent trains a model of its own, pulled towards each cluster centre by its share of the data.

    Args:
        M: The number of clusters.
        lam: The strength of the pull: F(theta) + lam/2 sum_s u_s ||theta - c_s||^2.
        init: How the centres start. "independent" makes M random networks, as in the paper; "tied" makes M copies
            of one, with 1 % noise.
    """

    M: int = 3
    lam: float = 0.1
    init: Literal["independent", "tied"] = "independent"

    name: ClassVar[str] = "FedSoft"
    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv 2112.06053"
    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_integer("fedsoft.M", self.M, 1)
        require_choice("fedsoft.init", self.init, ("independent", "tied"))
        require("fedsoft.lam", self.lam, lambda v: v >= 0, "0 or more")

    def start(self, networks: Networks, E: int) -> State:
        return {"c": clustered_start(networks, self.M, self.init)}

    def enroll(self, server: State) -> State:
        u = torch.full((self.M,), 1 / self.M, device=next(iter(server["c"].values())).device)
        return {"theta": _weighted_mean(server["c"], u), "u": u}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        c, u = server["c"], shares(agent.example_losses(server["c"]), agent)
        # lam sum_s u_s (theta - c_s) = lam U (theta - mean of the c_s weighted by u_s), U = sum_s u_s
        theta = agent.sgd(state["theta"], pull=Pull(_weighted_mean(c, u), self.lam * u.sum()))
        copies = {k: v.expand(self.M, *v.shape[1:]) for k, v in theta.items()}
        weight = u * self.weight(agent)
        add = {"c": scale(copies, weight), "weight": weight}
        return {"theta": theta, "u": u}, Upload(add=add, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {"c": mean_or_keep(server["c"], add["c"], add["weight"])}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight, total = upload.add["weight"], self.total_weight(n, agents)  # up to total (1 + M 1e-4)
        return weighted_contribution(server["c"], upload.add["c"], weight, total)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(state["theta"])[0]

    def label(self, server: State, state: State) -> Tensor:
        return torch.as_tensor(state["u"] / state["u"].sum())

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        u = shares(agent.example_losses(server["c"]), agent)
        return server, {"theta": _weighted_mean(server["c"], u), "u": u}


def shares(losses: Tensor, agent: Agent) -> Tensor:
    """Return u_s, the share of examples with the smallest loss at centre s, at least 1e-4: [M, n] -> [M]."""
    best = one_hot(losses.argmin(0), len(losses)).T  # [M, n]
    return agent.mean(best).clamp_min(1e-4)


def _weighted_mean(c: Models, u: Tensor) -> Models:
    """Return the mean of the centres, weighted by u, as a stack of one."""
    return {k: torch.einsum("m,m...->...", u / u.sum(), v).unsqueeze(0) for k, v in c.items()}
