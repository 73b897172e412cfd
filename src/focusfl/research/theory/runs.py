"""FOCUS from given weights, and FedAvg, run by the project's engine on a `Problem`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from focusfl.algorithms.fedavg import FedAvg
from focusfl.algorithms.focus.focus import Focus
from focusfl.core import Agent, Networks, State, Upload, vector
from focusfl.core.train import Train
from focusfl.research.theory.data import Problem
from focusfl.run.loop import run
from focusfl.run.setup import Setup


@dataclass(frozen=True)
class FocusFrom(Focus):
    """FOCUS that begins with given weights; a ridge term counts in the E step as it does in the M step."""

    begin: Tensor = field(default_factory=lambda: torch.zeros(0))  # [M, d]
    ridge: float = 0.0

    def start(self, networks: Networks, E: int) -> State:
        return {"w": {k: self.begin.reshape(v.shape).to(v) for k, v in networks.copies(len(self.begin)).items()}}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        ridge = self.ridge / 2 * vector(server["w"]).square().sum(1)  # pi exp(-loss - ridge)
        return super().local(server, {"log_pi": state["log_pi"] - ridge}, agent)


def focus(problem: Problem, begin: Tensor, eta: float, K: int, T: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Models [M, d] and log labels [E, M] after each round."""
    algorithm = FocusFrom(M=len(begin), init="tied", prune=0.0, begin=begin, ridge=problem.ridge)
    for done in run(_setup(algorithm, problem, eta, K, T), eval_every=0):
        yield vector(done.server["w"]).double(), done.states["log_pi"].double().clone()


def fedavg(problem: Problem, eta: float, K: int, T: int) -> Tensor:
    """The model after T rounds, [d]."""
    *_, last = run(_setup(FedAvg(), problem, eta, K, T), eval_every=0)
    return vector(last.server["w"])[0].double()


def log_odds(problem: Problem, log_pi: Tensor) -> float:
    """min over e of ln(pi_em / (1 - pi_em)), e in S_m."""
    own = torch.nn.functional.one_hot(problem.clusters, log_pi.shape[1]).bool()
    return float((log_pi[own] - log_pi.masked_fill(own, -torch.inf).logsumexp(1)).min())


def natural(problem: Problem, delta0: float, across: bool = False) -> Tensor:
    """A start whose slack is delta0: each model off towards the next one's centre, or across, on either side."""
    a, b = problem.mu**0.5, problem.L**0.5
    near = problem.R * a / (a + b) - problem.r - delta0
    way = problem.centres.roll(-1, 0) - problem.centres
    if across:
        way = way.roll(1, 1)
    return torch.as_tensor(problem.centres + near * way / way.norm(dim=1, keepdim=True))


def _setup(algorithm: Focus | FedAvg, problem: Problem, eta: float, K: int, T: int) -> Setup:
    train = Train(lr=eta, steps=K, weight_decay=problem.ridge)
    return Setup.of(algorithm, problem.fed, T, train=train, engine="vectorised")
