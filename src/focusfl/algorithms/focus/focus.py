"""FOCUS: EM clustering of agents (Chu et al. 2023, arXiv 2207.10265, Algorithm 1).

server  {"w": [M, ...]}                       cluster models w_m
agent   {"log_pi": [M]}                       log of its soft labels pi_em; they stay with the agent
upload  add {"theta": [M, ...], "pi": [M]}    sums over the agents of pi_em theta_em and of pi_em

`Focus.algorithm1(M)` is exactly the paper's algorithm. By default three collaborators add to it: `starting` (how
clusters start and which are in use: starts.py), `averaging` (how their models are averaged: averaging.py) and
`pruning` (which models an agent skips because its label is tiny: pruning.py). The first two keep their own state in
the same dicts. docs/focus.md compares the paper's choices with ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from focusfl.algorithms.focus.options import FocusOptions
from focusfl.core import Agent, Algorithm, Contribution, Networks, Predictor, State, Upload, mixture


def e_step(log_pi: Tensor, losses: Tensor) -> Tensor:
    """Return eq. 8 in logs: pi_m <- pi_m exp(-loss_m) / sum. A label can fall to 1e-300 and recover."""
    return torch.log_softmax(log_pi - losses, dim=-1)


@dataclass(frozen=True)
class Focus(FocusOptions, Algorithm):
    """EM clusters the agents: M models are trained, and each agent predicts with a mixture by its soft labels."""

    name: ClassVar[str] = "FOCUS"
    paper: ClassVar[str] = "Chu et al. 2023, arXiv 2207.10265"

    @classmethod
    def algorithm1(cls, M: int = 3) -> Focus:
        """The paper's Algorithm 1: M independent networks, pi_em = 1/M at first, no model is skipped."""
        return cls(M=M, init="independent", prune=0.0, adapt=False)

    def start(self, networks: Networks, E: int) -> State:
        return {**self.starting.start(networks, E), **self.averaging.start(self.starting.M)}  # w_m^(0)

    def enroll(self, server: State) -> State:
        M = self.starting.M
        return {"log_pi": torch.full((M,), -math.log(M)), **self.starting.enroll()}  # pi_em^(0) = 1/M

    def downlink(self, server: State, e: Tensor) -> State:
        return self.starting.downlink(server, e)  # all M models

    def released(self, server: State) -> State:
        return self.starting.released(server)

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        w, log_pi = server["w"], self.starting.log_labels(server, state)  # w_m^(t), log pi_em^(t)
        losses = agent.losses(w, estimate=log_pi < self.pruning.limit)  # mean of l(x, y; w_m) over the agent's data
        log_pi_next = e_step(self.forget * log_pi, losses)  # E step, eq. 8
        log_pi_next = self.pruning.limit_rise(log_pi, log_pi_next)
        pi = log_pi_next.exp()
        trained = pi > self.prune
        theta = agent.sgd(w, only=trained)  # M step, eqs. 4-5: K steps on the mean loss
        weight = pi * agent.n if self.weight_by_n else pi
        also = self.starting.upload(server, state, pi, losses, theta, agent)
        sums = self.averaging.upload(server, theta, weight, trained, self.starting.in_use(server), agent)
        upload = Upload(add=sums.add | also.add, each=sums.each | also.each)  # add: pi_em theta_em and pi_em
        return self.starting.next_state(server, state, log_pi_next, losses), upload

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        """Eq. 6: w_m = sum_e pi_em theta_em / sum_e pi_em."""
        averaged = self.averaging.aggregate(server, add, each, self.starting.in_use(server))
        return self.starting.aggregate(server, averaged, add, each, cohort)

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        total = n if self.weight_by_n else torch.tensor(float(agents))  # of pi_em over m and the agents
        return self.starting.contribution(self.averaging.contribution(server, upload, total, agents), upload)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        pi = self.starting.log_labels(server, state).exp()
        return mixture(pi, server["w"], h, drop=self.prune)  # inference, eq. 7: sum_m pi_em h(w_m)

    def label(self, server: State, state: State) -> Tensor:
        """pi_e of all M clusters: 0 for those that are not in use."""
        pi = self.starting.log_labels(server, state).exp()
        return pi.new_zeros(self.starting.M).index_copy(0, self.starting.in_use(server), pi)

    def settled(self, server: State) -> bool:
        return self.starting.settled(server)

    def keep_together(self, server: State) -> State | None:
        return self.starting.keep_together(server)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """Return what a newcomer receives, and its labels after one E step from equal ones on its own data."""
        view = self.starting.downlink(server, torch.tensor(0))  # of any agent: a newcomer has no first label
        losses = agent.losses(view["w"])
        log_pi = e_step(torch.zeros_like(losses), losses)
        state = {"log_pi": self.enroll(server)["log_pi"].to(losses.device), **self.starting.enroll(losses.device)}
        return view, self.starting.next_state(view, state, log_pi, losses)
