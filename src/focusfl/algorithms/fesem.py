"""FeSEM: federated stochastic EM, k-means on the agents' models (Xie et al. 2020, arXiv 2005.01026).

server  {"w": [M, ...],         cluster centres
         "first": [1, ...],     the common start
         "k": [E], "t": []}     each agent's cluster; M if it has not answered yet
agent   nothing
down    k of this agent, and its centre, or `first` if it has none
upload  each {"theta": [1, ...], "statistics": [1, ...]}      statistics: those of batch norm, if any
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
    State,
    Upload,
    mean_or_keep,
    one_hot,
    row,
    select_model,
    separate_statistics,
    vector,
)
from focusfl.util.errors import require_integer


@dataclass(frozen=True)
class FeSEM(Algorithm):
    """The server runs k-means on the agents' models, and each agent continues from the nearest centre.

    All agents start from one network. The first centres are trained models of the first round that are far from
    each other; if only a fraction of the agents participates, they come from these agents.

    Args:
        M: The number of clusters.
    """

    M: int = 3

    name: ClassVar[str] = "FeSEM"
    paper: ClassVar[str] = "Xie et al. 2020, arXiv 2005.01026"

    def __post_init__(self) -> None:
        require_integer("fesem.M", self.M, 1)

    def start(self, networks: Networks, E: int) -> State:
        k = torch.full((E,), self.M)
        return {"w": networks.copies(self.M), "first": networks.copies(1), "k": k, "t": torch.tensor(0)}

    def downlink(self, server: State, e: Tensor) -> State:
        k = row(server["k"], e)
        centre = select_model(server["w"], k.clamp_max(self.M - 1))
        return {"w": {i: torch.where(k == self.M, server["first"][i], v) for i, v in centre.items()}, "k": k}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        theta, statistics = separate_statistics(agent.sgd(server["w"]), agent.trainable)
        return state, Upload(add={}, each={"theta": theta, "statistics": statistics})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        theta = {k: v[:, 0] for k, v in (each["theta"] | each["statistics"]).items()}  # [C, ...]
        points, w = vector({k: theta[k] for k in each["theta"]}), server["w"]
        if server["t"] == 0:
            far = farthest_points(points, self.M)
            w = {k: torch.cat([theta[k][far], v[len(far) :]]) for k, v in w.items()}
        nearest = distances(points, vector({k: w[k] for k in each["theta"]})).argmin(1)  # E step
        member = one_hot(nearest, self.M)  # [C, M]
        total = {k: torch.einsum("cm,c...->m...", member, theta[k]) for k in w}
        centres = mean_or_keep(w, total, member.sum(0))  # M step
        return {**server, "w": centres, "k": server["k"].index_copy(0, cohort, nearest), "t": server["t"] + 1}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        theta = upload.each["theta"] | upload.each["statistics"]
        return Contribution(server["w"], {k: v - server["w"][k] for k, v in theta.items()})

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["w"])[0]

    def label(self, server: State, state: State) -> Tensor:
        return one_hot(server["k"], self.M)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        k = agent.losses(server["w"]).argmin()  # by loss: it has no trained model yet
        return {"w": select_model(server["w"], k), "k": k}, {}


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return ||a_i - b_j||^2: [C, P], [M, P] -> [C, M]. Products instead of differences would lose precision."""
    return torch.stack([(a - centre).square().sum(1) for centre in b], 1)


def farthest_points(points: Tensor, M: int) -> Tensor:
    """Return up to M of the points [C, P]: the farthest from the mean, then the farthest from those taken."""
    taken = [int((points - points.mean(0)).square().sum(1).argmax())]
    while len(taken) < min(M, len(points)):
        taken.append(int(distances(points, points[taken]).min(1).values.argmax()))
    return torch.tensor(taken, device=points.device)
