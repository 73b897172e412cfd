"""FOCUS: EM clustering of agents (Chu et al. 2023, arXiv 2207.10265, Algorithm 1).

server  {"w": [M, ...]}      cluster models
agent   {"log_pi": [M]}      log soft labels of agent e; stays with it
upload  add {"theta": [M, ...], "pi": [M]}

The start "split" keeps a little more (algorithms/live.py), and until the agents are parted the server sees each
{"sketch": [256]} (algorithms/split.py). M = "auto" adds votes (algorithms/merge.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from focusfl.algorithms.focus import live, merge, robust, split
from focusfl.core import Agent, Algorithm, Models, Networks, Predictor, State, Upload, mean_or_keep, mixed, scale_
from focusfl.util.errors import require, require_choice, require_integer


@dataclass(frozen=True)
class Focus(Algorithm):
    """EM clustering of agents: M models, soft labels pi_em, mixture predictions.

    M            how many clusters; "auto": as many as the agents' updates show (with init = "split"), joined later
                 where their models agree
    init         "split": a shared model first, then the agents are grouped by their updates;
                 "tied": one random network, M copies, noise added; "independent": M random networks
    noise        of "tied", in standard deviations of each parameter tensor
    warmup       of "split": rounds of the shared model
    prune        a model whose label is at most this is not trained by that agent in that round; one whose label
                 is e^20 times smaller still, many rounds from mattering, is judged on a tenth of the examples
    forget       log labels are scaled by this before each E step: below 1, an agent whose data change can move
    robust       "clip": long updates are shortened; "trim": the server, which then sees each agent's models, leaves
                 out the largest and smallest values (algorithms/robust.py)
    weight_by_n  average with n_e pi_em (which eq. 9 implies) instead of pi_em (eq. 6)
    """

    M: int | Literal["auto"] = "auto"
    init: Literal["split", "tied", "independent"] = "split"
    noise: float = 0.01
    prune: float = 1e-4
    weight_by_n: bool = False
    warmup: int = field(default=3, metadata={"later": True})
    forget: float = field(default=1.0, metadata={"later": True})
    robust: Literal["no", "clip", "trim"] = field(default="no", metadata={"later": True})

    name: ClassVar[str] = "FOCUS"
    paper: ClassVar[str] = "Chu et al. 2023, arXiv 2207.10265"

    def __post_init__(self) -> None:
        require_choice("focus.init", self.init, ("split", "tied", "independent"))
        if self.M == "auto":
            how = 'a number of clusters, as 3, or init = "split"'
            require("focus.M", self.M, self.init == "split", f'with init = "{self.init}" {how}')
        else:
            require_integer("focus.M", self.M, 1)
        require_integer("focus.warmup", self.warmup, 1)
        require("focus.noise", self.noise, self.noise >= 0, "0 or more")
        require("focus.prune", self.prune, 0 <= self.prune < 1 / self.slots, "from 0 to below 1/M")
        require_choice("focus.robust", self.robust, ("no", "clip", "trim"))
        require("focus.forget", self.forget, 0 < self.forget <= 1, "above 0 and at most 1")

    @property
    def slots(self) -> int:
        """Clusters there is room for."""
        return split.MOST if self.M == "auto" else self.M

    @property
    def room(self) -> int | None:
        return self.slots if self.init == "split" else None

    @property
    def shows(self) -> bool:
        return self.init == "split" or self.robust == "trim"

    def start(self, networks: Networks, E: int) -> State:
        extra = {"bound": torch.zeros(self.slots)} if self.robust == "clip" else {}
        if self.init == "split":
            extra |= merge.begin(self.slots) if self.M == "auto" else {}
            return live.begin(networks.copies(1), E, self.slots) | extra
        tied = self.init == "tied"
        w = networks.copies(self.slots, self.noise) if tied else networks.independent(self.slots)
        return {"w": w} | extra

    def enroll(self, server: State) -> State:
        first = {"log_pi": torch.full((self.slots,), -math.log(self.slots))}  # pi_em = 1/M
        first |= {"told": torch.tensor(0)} if self.init == "split" else {}
        return first | (merge.enrolled() if self.M == "auto" else {})

    def downlink(self, server: State, e: Tensor) -> State:
        return live.view(server, e)

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        w, log_pi = server["w"], live.labels(server, state)
        limit = math.log(self.prune) - 20 if self.prune else -math.inf
        losses = agent.losses(w, rough=log_pi < limit)
        log_pi = not_above(limit, log_pi < limit, e_step(self.forget * log_pi, losses))  # E step, eq. 8
        pi = log_pi.exp()
        theta = agent.sgd(w, only=pi > self.prune)  # M step, eqs. 4-5
        share = pi * agent.n if self.weight_by_n else pi
        votes, sketch = merge.votes(server, state, pi, losses), self._sketch(server, theta, agent)
        state = live.kept(server, state, log_pi) | merge.remembered(server, losses)
        if self.robust == "trim":
            return state, Upload(add=votes, each={"theta": theta, "share": share, **sketch})
        if self.robust == "clip":
            theta, length = robust.shortened(server["w"], theta, server["bound"][live.which(server)], agent.learnt)
            votes |= {"lengths": robust.histogram(length, share * (pi > self.prune))}  # of those that trained it
        return state, Upload(add={"theta": scale_(theta, share), "pi": share, **votes}, each=sketch)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        if self.robust == "trim":
            means = robust.trimmed(server["w"], each["theta"], each["share"])
        else:
            means = mean_or_keep(server["w"], add["theta"], add["pi"])  # eq. 6
        if self.robust == "clip":
            server = {**server, "bound": robust.bounds(server["bound"], add["lengths"], live.which(server))}
        if "live" not in server:
            return {**server, "w": means}
        after = merge.settle(live.advance(server, means), add, cohort)
        if "sketch" not in each:
            return after
        M = None if self.M == "auto" else self.M
        return live.listen(after, server["w"], each["sketch"], cohort, self.warmup, M)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return mixed(live.labels(server, state).exp(), server["w"], h)  # eq. 7

    def label(self, server: State, state: State) -> Tensor:
        pi = live.labels(server, state).exp()
        return pi if "live" not in server else pi.new_zeros(self.slots).index_copy(0, live.which(server), pi)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        view = live.view(server, torch.tensor(0))
        losses = agent.losses(view["w"])
        log_pi = e_step(torch.zeros_like(losses), losses)  # from pi = 1/M
        state = {k: v.to(losses.device) for k, v in self.enroll(server).items()}
        return view, live.kept(view, state, log_pi)

    def _sketch(self, server: State, theta: Models, agent: Agent) -> State:
        """How this agent would change the shared model; until the agents are parted."""
        if not live.asks(server):
            return {}
        return {"sketch": split.sketch({k: theta[k] - server["w"][k] for k in agent.learnt})}


def e_step(log_pi: Tensor, losses: Tensor) -> Tensor:
    """Eq. 8 in logs: pi_m <- pi_m exp(-loss_m) / sum. A label may fall to 1e-300 and come back."""
    return torch.log_softmax(log_pi - losses, dim=-1)


def not_above(limit: float, far: Tensor, log_pi: Tensor) -> Tensor:
    """A label that was judged roughly comes back to just above `limit`: the next round judges it on everything."""
    others = torch.where(far, -math.inf, log_pi).logsumexp(-1, keepdim=True)
    held = torch.log_softmax(torch.where(far, log_pi.minimum(others + limit + 1), log_pi), dim=-1)
    return torch.where(far.any(-1, keepdim=True), held, log_pi)
