"""CGSV: rewards by the cosine gradient Shapley value (Xu et al. 2021, NeurIPS, "Gradient driven rewards to
guarantee fairness in collaborative machine learning").

server  {"w": [1, ...], "v": [E, 1, ...], "r": [E]}      v: the agents' models; r: their importance, 0 at first
agent   nothing: the server knows its model, which is the server's at its first round plus its rewards (keep: and
        its updates)
down    v_e
upload  each {"u": [1, ...], "statistics": [1, ...], "n": []}      statistics: those of batch norm, if any
        keep: also "length": [1], that of u before it was scaled
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    broadcast,
    row,
    scale,
    separate_statistics,
    vector,
)
from focusfl.util.errors import require


@dataclass(frozen=True)
class CGSV(Algorithm):
    """An agent gets more of the summed update the better its own update agrees with the sum.

    Args:
        alpha: How much of an agent's importance is kept from round to round.
        beta: Altruism; larger values make the rewards more equal.
        Gamma: The length that every update is scaled to. The paper uses 0.5 on MNIST and 0.15 on CIFAR.
        keep: Whether an agent adds its reward to its trained model instead of the model it started the round with.
            Then no agent is left behind, but none comes closer to its best model than the last reward. This matches
            the numbers of the FOCUS paper.
    """

    alpha: float = 0.95
    beta: float = 1.0
    Gamma: float = 0.5
    keep: bool = field(default=False, metadata={"later": True})

    name: ClassVar[str] = "CGSV"
    paper: ClassVar[str] = "Xu et al. 2021, NeurIPS"
    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require("cgsv.alpha", self.alpha, lambda v: 0 <= v < 1, "from 0 to below 1")
        require("cgsv.beta", self.beta, lambda v: v > 0, "a positive number")
        require("cgsv.Gamma", self.Gamma, lambda v: v > 0, "a positive number")

    def start(self, networks: Networks, E: int) -> State:
        w = networks.copies(1)
        v = {k: x.repeat(E, *[1] * x.dim()) for k, x in w.items()}
        return {"w": w, "v": v, "r": torch.zeros(E)}

    def downlink(self, server: State, e: Tensor) -> State:
        v: Models = server["v"]
        return {"v": _starting_models(row(server["r"], e), server["w"], row(v, e))}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        v = server["v"]
        theta = agent.sgd(v)
        u, statistics = separate_statistics({k: theta[k] - v[k] for k in v}, agent.trainable)
        length = vector(u).norm(dim=1) + 1e-7
        u = scale(u, self.Gamma / length)
        each = {"u": u, "statistics": statistics, "n": agent.n}
        return state, Upload(add={}, each=each | {"length": length} if self.keep else each)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        u, n, r = {k: x[:, 0] for k, x in each["u"].items()}, each["n"], server["r"][cohort]  # [C, ...]
        weight = torch.where(r > 0, r, n / n.sum())  # new agents count by examples, as all do at first
        A = {k: torch.einsum("c,c...->...", weight / weight.sum(), x) for k, x in u.items()}
        flat, flat_A = vector(u), vector({k: x.unsqueeze(0) for k, x in A.items()})
        phi = torch.nn.functional.cosine_similarity(flat, flat_A, eps=1e-10)  # [C]
        r = (self.alpha * r + (1 - self.alpha) * phi).clamp_min(1e-3)
        all_r = server["r"].index_copy(0, cohort, r)
        all_r = all_r / all_r.sum()
        q = torch.tanh(self.beta * all_r[cohort])
        rewards = {k: self._rewards(x, q / q.max()).unsqueeze(1) for k, x in A.items()}
        if self.keep:
            own = scale(u, each["length"][:, 0] / self.Gamma)
            rewards = {k: x + own[k].unsqueeze(1) for k, x in rewards.items()}
        rewards |= each["statistics"]
        before = _starting_models(server["r"][cohort], server["w"], {k: x[cohort] for k, x in server["v"].items()})
        v = {k: x.index_copy(0, cohort, before[k] + rewards[k]) for k, x in server["v"].items()}
        participated = all_r > 0
        w = {k: x + A[k] if k in A else v[k][participated].mean(0) for k, x in server["w"].items()}
        return {"w": w, "v": v, "r": all_r}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        sent, weight = upload.each, upload.each["n"].reshape(1)
        others = {"length": sent["length"]} if self.keep else {}
        return Contribution(server["v"], sent["u"] | sent["statistics"], weight, total=n, others=others)

    @staticmethod
    def _rewards(A: Tensor, q: Tensor) -> Tensor:
        """Return for each agent A [d] with all but its k = ceil(d q) largest entries set to 0, [C, ...]."""
        order = A.abs().flatten().argsort(descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=A.device))
        k = (A.numel() * q).ceil().clamp_max(A.numel())
        return torch.where(rank.reshape(A.shape) < k.reshape(-1, *[1] * A.dim()), A, 0)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["v"])[0]

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return {"v": server["w"]}, {}


def _starting_models(r: Tensor, w: Models, v: Models) -> Models:
    """Return the models that one agent (r []) or several (r [C]) start from; with r = 0, the server's model."""
    return {k: torch.where(broadcast(r == 0, x), w[k], x) for k, x in v.items()}
