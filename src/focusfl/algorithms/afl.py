"""AFL: agnostic federated learning (Mohri et al. 2019, arXiv 1902.00146).

server  {"w": [1, ...], "mean": [1, ...], "lam": [E], "t": []}      mean: the mean of w_1 .. w_t
agent   nothing
down    w, mean, and lam_e of this agent only
upload  add {"theta": [1, ...], "lam": []}, each {"loss": []}
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    mean_or_keep,
    row,
    scale,
    weighted_contribution,
)
from focusfl.util.errors import require, require_choice


@dataclass(frozen=True)
class AFL(Algorithm):
    """The loss of the worst mixture of agents is minimised: agents with a larger loss get more weight.

    Args:
        gamma: The step size of the agents' weights lam; 0 keeps them equal.
        at: "before" updates lam with the losses of the shared model; "after" with those of the agents' trained
            models, which matches the numbers of the FOCUS paper.
    """

    gamma: float = 0.01
    at: Literal["before", "after"] = field(default="before", metadata={"later": True})

    name: ClassVar[str] = "AFL"
    paper: ClassVar[str] = "Mohri et al. 2019, arXiv 1902.00146"

    def __post_init__(self) -> None:
        require("afl.gamma", self.gamma, lambda v: v >= 0, "0 or more")
        require_choice("afl.at", self.at, ("before", "after"))

    def start(self, networks: Networks, E: int) -> State:
        w = networks.copies(1)
        return {"w": w, "mean": w, "lam": torch.full((E,), 1 / E), "t": torch.tensor(0)}

    def downlink(self, server: State, e: Tensor) -> State:
        return {**server, "lam": row(server["lam"], e)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        w, lam = server["w"], server["lam"]
        before = agent.losses(w) if self.at == "before" else None
        theta = agent.sgd(w)
        loss = (agent.losses(theta) if before is None else before)[0]
        return state, Upload(add={"theta": scale(theta, lam), "lam": lam}, each={"loss": loss})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        w = mean_or_keep(server["w"], add["theta"], add["lam"].reshape(1))
        lam = project(server["lam"].index_add(0, cohort, self.gamma * each["loss"]))
        t = server["t"] + 1
        mean = {k: v + (w[k] - v) / t for k, v in server["mean"].items()}
        return {"w": w, "mean": mean, "lam": lam, "t": t}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        weight = upload.add["lam"].reshape(1)
        models = weighted_contribution(server["w"], upload.add["theta"], weight, total=server["lam"])
        return models._replace(others={"loss": upload.each["loss"]})

    def released(self, server: State) -> State:
        """Return the state with equal weights: their differences are those of the losses that agents sent."""
        return {**server, "lam": torch.full_like(server["lam"], 1 / len(server["lam"]))}

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["mean"])[0]


def project(v: Tensor) -> Tensor:
    """Return the nearest point of the simplex {lam >= 0, sum lam = 1}.

    Example:
        >>> project(torch.tensor([0.5, 0.5, -1.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    if not torch.isfinite(v).all():
        return torch.full_like(v, torch.nan)  # the run stops after this round and reports that it diverged
    v = v - v.max()  # a shift does not change the result and avoids rounding
    u = v.sort(descending=True).values
    tau = (1 - u.cumsum(0)) / torch.arange(1, len(u) + 1, device=v.device)
    rho = (u + tau > 0).nonzero()[-1]
    return (v + tau[rho]).clamp_min(0)
