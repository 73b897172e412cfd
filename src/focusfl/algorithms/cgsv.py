"""CGSV: agents are rewarded by how well their updates agree with all (Xu et al. 2021, NeurIPS, "Gradient driven
rewards to guarantee fairness in collaborative machine learning").

server  {"w": [1, ...], "v": [E, 1, ...], "r": [E]}      v: the agents' models; r: their importance, first 0
agent   nothing: its model is the server's when it came plus its rewards (keep: and updates), so the server knows it
down    v_e
upload  each {"u": [1, ...], "statistics": [1, ...], "n": []}      statistics: of batch norm, where there is any
        keep: also "length": [1], of u before it was scaled
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from focusfl.core import Agent, Algorithm, Models, Networks, Predictor, State, Upload, row, scale, separate, vector
from focusfl.util.errors import require


@dataclass(frozen=True)
class CGSV(Algorithm):
    """Rewards by agreement: the better an agent's update agrees with all, the more of the sum it gets.

    alpha  how much of an agent's importance stays from round to round
    beta   altruism: the larger, the more equal the rewards
    Gamma  length to which every update is scaled. The paper: 0.5 on MNIST, 0.15 on CIFAR
    keep   an agent adds its reward to what it has just learnt, not to what it began the round with: none is left
           behind, and none comes closer to its best than the last reward; the FOCUS paper's numbers look like it
    """

    alpha: float = 0.95
    beta: float = 1.0
    Gamma: float = 0.5
    keep: bool = field(default=False, metadata={"later": True})

    name: ClassVar[str] = "CGSV"
    paper: ClassVar[str] = "Xu et al. 2021, NeurIPS"
    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require("cgsv.alpha", self.alpha, 0 <= self.alpha < 1, "from 0 to below 1")
        require("cgsv.beta", self.beta, self.beta > 0, "a positive number")
        require("cgsv.Gamma", self.Gamma, self.Gamma > 0, "a positive number")

    def start(self, networks: Networks, E: int) -> State:
        w = networks.copies(1)
        v = {k: x.repeat(E, *[1] * x.dim()) for k, x in w.items()}
        return {"w": w, "v": v, "r": torch.zeros(E)}

    def downlink(self, server: State, e: Tensor) -> State:
        mine = row({"v": server["v"], "r": server["r"]}, e)
        return {"v": _begun(mine["r"], server["w"], mine["v"])}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        v = server["v"]
        theta = agent.sgd(v)
        u, statistics = separate({k: theta[k] - v[k] for k in v}, agent.learnt)
        length = vector(u).norm(dim=1) + 1e-7
        u = scale(u, self.Gamma / length)
        each = {"u": u, "statistics": statistics, "n": agent.n}
        return state, Upload(add={}, each=each | {"length": length} if self.keep else each)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        u, n, r = {k: x[:, 0] for k, x in each["u"].items()}, each["n"], server["r"][cohort]  # [C, ...]
        weight = torch.where(r > 0, r, n / n.sum())  # who is new counts by examples, as all do in the first round
        A = {k: torch.einsum("c,c...->...", weight / weight.sum(), x) for k, x in u.items()}
        flat, whole = vector(u), vector({k: x.unsqueeze(0) for k, x in A.items()})
        phi = torch.nn.functional.cosine_similarity(flat, whole, eps=1e-10)  # [C]
        r = (self.alpha * r + (1 - self.alpha) * phi).clamp_min(1e-3)
        everyone = server["r"].index_copy(0, cohort, r)
        everyone = everyone / everyone.sum()
        q = torch.tanh(self.beta * everyone[cohort])
        rewards = {k: self._rewards(x, q / q.max()).unsqueeze(1) for k, x in A.items()}
        if self.keep:
            own = scale(u, each["length"][:, 0] / self.Gamma)
            rewards = {k: x + own[k].unsqueeze(1) for k, x in rewards.items()}
        rewards |= each["statistics"]
        before = _begun(server["r"][cohort], server["w"], {k: x[cohort] for k, x in server["v"].items()})
        v = {k: x.index_copy(0, cohort, before[k] + rewards[k]) for k, x in server["v"].items()}
        known = everyone > 0
        w = {k: x + A[k] if k in A else v[k][known].mean(0) for k, x in server["w"].items()}
        return {"w": w, "v": v, "r": everyone}

    @staticmethod
    def _rewards(A: Tensor, q: Tensor) -> Tensor:
        """[C, ...]: for each agent A with only its k = ceil(d q) largest entries of d kept."""
        order = A.abs().flatten().argsort(descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=A.device))
        k = (A.numel() * q).ceil().clamp_max(A.numel())
        return torch.where(rank.reshape(A.shape) < k.reshape(-1, *[1] * A.dim()), A, 0)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["v"])[0]

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return {"v": server["w"]}, {}


def _begun(r: Tensor, w: Models, v: Models) -> Models:
    """The agents' models, of one ([]) or of some ([C]): who is new, r = 0, begins with the server's."""
    new = {k: (r == 0).reshape(r.shape + (1,) * (x.dim() - r.dim())) for k, x in v.items()}
    return {k: torch.where(new[k], w[k], x) for k, x in v.items()}
