"""FeSEM: k-means on the agents' models (Xie et al. 2020, arXiv 2005.01026).

server  {"w": [M, ...], "k": [E], "t": []}      cluster centres; each agent's cluster
agent   nothing
down    w_k and k of this agent's cluster
upload  each {"theta": [1, ...]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    one_hot,
    one_of,
    row,
    vector,
)
from focusfl.errors import require


@dataclass(frozen=True)
class FeSEM(Algorithm):
    """k-means on the agents' models: each agent goes on from the centre nearest to what it trained.

    The first centres are trained models far from each other, so that all agents may start from one network.

    M  how many clusters
    """

    M: int = 3

    name: ClassVar[str] = "FeSEM"
    paper: ClassVar[str] = "Xie et al. 2020, arXiv 2005.01026"

    def __post_init__(self) -> None:
        require("fesem.M", self.M, self.M >= 1, "1 or more")

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(self.M), "k": torch.zeros(E, dtype=torch.long), "t": torch.tensor(0)}

    def downlink(self, server: State, e: Tensor) -> State:
        k = row({"k": server["k"]}, e)["k"]
        return {"w": one_of(server["w"], k), "k": k}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        return state, Upload(add={}, each={"theta": agent.sgd(server["w"])})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        theta = {k: v[:, 0] for k, v in each["theta"].items()}  # [C, ...]
        w = server["w"]
        if server["t"] == 0:
            far = far_apart(vector(theta), self.M)
            w = {k: torch.cat([v[far], w[k][len(far) :]]) for k, v in theta.items()}
        nearest = distances(vector(theta), vector(w)).argmin(1)  # E step
        member = one_hot(nearest, self.M)  # [C, M]
        total = {k: torch.einsum("cm,c...->m...", member, v) for k, v in theta.items()}
        centres = mean_or_keep(w, total, member.sum(0))  # M step
        return {"w": centres, "k": server["k"].index_copy(0, cohort, nearest), "t": server["t"] + 1}

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["w"])[0]

    def label(self, server: State, state: State) -> Tensor:
        return one_hot(server["k"], self.M)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        k = agent.losses(server["w"]).argmin()  # it has no trained model yet: by loss
        return {"w": one_of(server["w"], k), "k": k}, {}


def distances(a: Tensor, b: Tensor) -> Tensor:
    """||a_i - b_j||^2: [C, P], [M, P] -> [C, M]. By differences: products lose what is between near models."""
    return torch.stack([(a - centre).square().sum(1) for centre in b], 1)


def far_apart(points: Tensor, M: int) -> Tensor:
    """M of the points [C, P], if there are so many: the farthest from the mean, then from those taken."""
    taken = [int((points - points.mean(0)).square().sum(1).argmax())]
    while len(taken) < min(M, len(points)):
        taken.append(int(distances(points, points[taken]).min(1).values.argmax()))
    return torch.tensor(taken, device=points.device)
