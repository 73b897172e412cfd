"""FOCUS: EM clustering of agents (Chu et al. 2023, arXiv 2207.10265, Algorithm 1).

server  {"w": [M, ...]}                       cluster models w_m
agent   {"log_pi": [M]}                       log of its soft labels pi_em; they stay with the agent
upload  add {"theta": [M, ...], "pi": [M]}    sums over the agents of pi_em theta_em and of pi_em

`Focus.algorithm1(M)` is exactly the paper's algorithm. By default three collaborators add to it, each with state of
its own: how clusters start (starts.py), how their models are averaged (averaging.py), and which models an agent
skips because its label for them is tiny (pruning.py). docs/focus.md compares the paper's choices with ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from focusfl.algorithms.focus.options import FocusOptions
from focusfl.core import Agent, Algorithm, Networks, Predictor, State, Upload, mixture


@dataclass(frozen=True)
class Focus(FocusOptions, Algorithm):
    """EM clusters the agents: each has soft labels for M models and predicts with their mixture.

    Args:
        See `FocusOptions`.
    """

    name: ClassVar[str] = "FOCUS"
    paper: ClassVar[str] = "Chu et al. 2023, arXiv 2207.10265"

    @classmethod
    def algorithm1(cls, M: int = 3) -> Focus:
        """Return the paper's Algorithm 1: M independent networks, pi_em = 1/M at first, no model is skipped."""
        return cls(M=M, init="independent", prune=0.0)

    def start(self, networks: Networks, E: int) -> State:
        return {**self.clusters.start(networks, E), **self.averaging.start(self.clusters.M)}

    def enroll(self, server: State) -> State:
        M = self.clusters.M
        return {"log_pi": torch.full((M,), -math.log(M)), **self.clusters.enroll()}  # pi_em = 1/M

    def downlink(self, server: State, e: Tensor) -> State:
        return self.clusters.downlink(server, e)

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        w, log_pi = server["w"], self.clusters.log_labels(server, state)
        losses = agent.losses(w, estimate=log_pi < self.pruning.limit)
        log_pi = self.pruning.limit_rise(log_pi, e_step(self.forget * log_pi, losses))  # E step, eq. 8
        pi = log_pi.exp()
        theta = agent.sgd(w, only=pi > self.prune)  # M step, eqs. 4-5: K local steps of each model
        weight = pi * agent.n if self.weight_by_n else pi
        extra = self.clusters.upload(server, state, pi, losses, theta, agent)
        models = self.averaging.upload(server, theta, weight, pi > self.prune, self.clusters.in_use(server), agent)
        upload = Upload(add=models.add | extra.add, each=models.each | extra.each)
        return self.clusters.next_state(server, state, log_pi, losses), upload

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        averaged = self.averaging.aggregate(server, add, each, self.clusters.in_use(server))  # eq. 6
        return self.clusters.aggregate(server, averaged, add, each, cohort)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        pi = self.clusters.log_labels(server, state).exp()
        return mixture(pi, server["w"], h, drop=self.prune)  # eq. 7: sum_m pi_em h(w_m)

    def label(self, server: State, state: State) -> Tensor:
        pi = self.clusters.log_labels(server, state).exp()
        return pi.new_zeros(self.clusters.M).index_copy(0, self.clusters.in_use(server), pi)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """Return what a new agent receives, and its labels after one E step from pi = 1/M on its own data."""
        view = self.clusters.downlink(server, torch.tensor(0))
        losses = agent.losses(view["w"])
        log_pi = e_step(torch.zeros_like(losses), losses)
        state = {"log_pi": self.enroll(server)["log_pi"].to(losses.device), **self.clusters.enroll(losses.device)}
        return view, self.clusters.next_state(view, state, log_pi, losses)


def e_step(log_pi: Tensor, losses: Tensor) -> Tensor:
    """Return eq. 8 in logs: pi_m <- pi_m exp(-loss_m) / sum. A label can fall to 1e-300 and recover."""
    return torch.log_softmax(log_pi - losses, dim=-1)
