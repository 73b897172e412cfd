"""FedAvg-HardCluster: FedAvg within the clusters of FOCUS (Chu et al. 2023, arXiv 2207.10265, appendix).

server  {"w": [M, ...], "k": [E]}      one model per cluster, all copies of one new network; each agent's cluster
agent   nothing
down    w, and k of this agent only
upload  add {"theta": [M, ...], "n": [M]}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from focusfl.algorithms.focus.focus import Focus
from focusfl.algorithms.weighting import Weighting
from focusfl.core import (
    Agent,
    Algorithm,
    Contribution,
    Models,
    Networks,
    Predictor,
    Prerequisite,
    State,
    Upload,
    mean_or_keep,
    one_hot,
    row,
    scale,
    select_model,
    weighted_contribution,
)
from focusfl.util.errors import require, require_choice, require_integer


@dataclass(frozen=True, repr=False)
class HardCluster(Weighting, Algorithm):
    """FOCUS runs first; then FedAvg trains a new network within each cluster that FOCUS found.

    Args:
        M: The number of clusters, for FOCUS.
        init: How the clusters of FOCUS start.
        clusters: Each agent's cluster, if you know it. Then FOCUS is not run.
    """

    M: int = 3
    init: Literal["split", "tied", "independent"] = "split"
    clusters: tuple[int, ...] | None = None

    name: ClassVar[str] = "FedAvg-HardCluster"
    paper: ClassVar[str] = "Chu et al. 2023, arXiv 2207.10265, appendix"

    def __post_init__(self) -> None:
        require_integer("hardcluster.M", self.M, 1)
        require_choice("hardcluster.init", self.init, ("split", "tied", "independent"))
        inside = all(0 <= k < self.M for k in self.clusters or ())
        require("hardcluster.clusters", self.clusters, inside, "numbers from 0 to M - 1")

    def prerequisite(self) -> Prerequisite | None:
        if self.clusters is not None:
            return None
        focus = Focus(M=self.M, init=self.init)
        return Prerequisite(focus, lambda clusters: replace(self, clusters=tuple(clusters.tolist())))

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        fits = self.clusters is None or len(self.clusters) == E
        require("hardcluster.clusters", self.clusters, fits, f"one cluster for each of the {E} agents")

    def start(self, networks: Networks, E: int) -> State:
        assert self.clusters is not None  # the prerequisite has been run
        return {"w": networks.copies(self.M), "k": torch.tensor(self.clusters)}

    def downlink(self, server: State, e: Tensor) -> State:
        return {**server, "k": row(server["k"], e)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        share = one_hot(server["k"], self.M) * self.weight(agent)
        theta = agent.sgd(server["w"], only=share > 0)
        return state, Upload(add={"theta": scale(theta, share), "n": share}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return {**server, "w": mean_or_keep(server["w"], add["theta"], add["n"])}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight, k = upload.add["n"], server["k"]
        total = self.total_weight(n, agents)
        total = one_hot(k, self.M) * total if k.dim() == 0 else total  # the server knows the agent's cluster
        return weighted_contribution(server["w"], upload.add["theta"], weight, total)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(select_model(server["w"], server["k"]))[0]

    def label(self, server: State, state: State) -> Tensor:
        return one_hot(server["k"], self.M)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return {**server, "k": agent.losses(server["w"]).argmin()}, {}
