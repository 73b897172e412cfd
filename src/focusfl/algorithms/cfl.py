"""CFL: clustered federated learning by splitting (Sattler et al. 2021, arXiv 1910.01991).

server  {"w": [most, ...], "k": [E], "t": []}      one model per cluster so far; each agent's cluster
agent   nothing
down    k of this agent, and w_k
upload  each {"u": [1, ...], "statistics": [1, ...]}      statistics: those of batch norm, if any
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
    Models,
    Networks,
    Predictor,
    State,
    Upload,
    one_hot,
    row,
    select_model,
    separate_statistics,
    vector,
)
from focusfl.util.errors import require, require_integer


@dataclass(frozen=True)
class CFL(Algorithm):
    """A cluster is split in two when its mean update is small but single updates are large.

    Args:
        e1: A cluster is split if the length of its mean update is below e1 ...
        e2: ... and the length of its largest update is above e2. Both depend on the model and the learning rate.
        wait: The number of rounds before the first split.
        most: The largest number of clusters.
    """

    e1: float = 0.4
    e2: float = 1.6
    wait: int = 20
    most: int = 10

    name: ClassVar[str] = "CFL"
    paper: ClassVar[str] = "Sattler et al. 2021, arXiv 1910.01991"

    def __post_init__(self) -> None:
        require("cfl.e1", self.e1, lambda v: v >= 0, "0 or more")
        require("cfl.e2", self.e2, lambda v: v >= 0, "0 or more")
        require_integer("cfl.wait", self.wait, 0)
        require_integer("cfl.most", self.most, 1)

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(self.most), "k": torch.zeros(E, dtype=torch.long), "t": torch.tensor(0)}

    def downlink(self, server: State, e: Tensor) -> State:
        k = row(server["k"], e)
        return {"w": select_model(server["w"], k), "k": k}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        theta = agent.sgd(server["w"])
        u, statistics = separate_statistics({k: theta[k] - v for k, v in server["w"].items()}, agent.trainable)
        return state, Upload(add={}, each={"u": u, "statistics": statistics})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        u = {k: v[:, 0] for k, v in (each["u"] | each["statistics"]).items()}  # [C, ...]
        flat, t = vector({k: u[k] for k in each["u"]}), server["t"] + 1
        w, k = {name: v.clone() for name, v in server["w"].items()}, server["k"].clone()
        for m in range(int(k.max()) + 1):
            members = (k[cohort] == m).nonzero().flatten()  # of cluster m that answered, as rows of u
            if t > self.wait and self.should_split(flat[members]) and int(k.max()) + 1 < self.most:
                leaving = members[split(flat[members])]
                new = int(k.max()) + 1
                k[cohort[leaving]] = new
                for v in w.values():
                    v[new] = v[m]
                _step(w, new, u, leaving)
                members = members[~torch.isin(members, leaving)]
            _step(w, m, u, members)
        return {"w": w, "k": k, "t": t}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        return Contribution(server["w"], upload.each["u"] | upload.each["statistics"])

    def should_split(self, u: Tensor) -> bool:
        """Return whether the updates u [C, P] of one cluster point in different directions."""
        if len(u) <= 2:
            return False
        return bool(u.mean(0).norm() < self.e1 and u.norm(dim=1).max() > self.e2)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["w"])[0]

    def label(self, server: State, state: State) -> Tensor:
        return one_hot(server["k"], self.most)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        losses = agent.losses(server["w"])
        k = losses[: int(server["k"].max()) + 1].argmin()  # by loss: it has no update yet
        return {"w": select_model(server["w"], k), "k": k}, {}


def split(u: Tensor) -> Tensor:
    """Split updates [C, P] in two by complete linkage on negative cosines; return the smaller group, [C] bool."""
    from sklearn.cluster import AgglomerativeClustering  # takes a second to import

    unit = u.cpu().double() / u.cpu().double().norm(dim=1, keepdim=True).clamp_min(1e-30)
    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    second = torch.from_numpy(linkage.fit_predict((-unit @ unit.T).numpy())).bool().to(u.device)
    return second if second.sum() <= len(u) / 2 else ~second


def _step(w: Models, m: int, u: Models, members: Tensor) -> None:
    """Add the mean update of its members to w_m, in place."""
    if len(members):
        for name, v in w.items():
            v[m] += u[name][members].mean(0)
