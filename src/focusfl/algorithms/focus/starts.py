"""How the clusters of FOCUS start.

`Start` is what FOCUS asks of any of them. `Independent` and `Tied` stand here: all M clusters are in use from the
first round, and nothing but w and log_pi is kept. `Split` (split.py) and `AutoSplit` (merge.py) begin with one
shared model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from focusfl.core import Agent, Models, Networks, State, Upload


class Start(ABC):
    """How clusters start and which of the M are in use. State of its own has a key of its own beside FOCUS's."""

    def __init__(self, M: int) -> None:
        self.M = M  # clusters at most

    @abstractmethod
    def start(self, networks: Networks, E: int) -> State:
        """The server's first state: {"w": models}, and what the start keeps besides."""

    def enroll(self, device: torch.device | None = None) -> State:
        """What the start keeps at an agent, at first."""
        return {}

    def downlink(self, server: State, e: Tensor) -> State:
        """What agent e receives."""
        return server

    def in_use(self, server: State) -> Tensor:
        """The clusters whose models are in w, ascending."""
        return torch.arange(self.M, device=next(iter(server["w"].values())).device)

    def labels(self, server: State, state: State) -> Tensor:
        """Log labels of the clusters in use."""
        return torch.as_tensor(state["log_pi"])

    def all_labels(self, server: State, pi: Tensor) -> Tensor:
        """Labels of all M clusters, from those of the clusters in use."""
        return pi

    def remember(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        """The agent's next state, with these log labels of the clusters in use."""
        return {"log_pi": log_pi}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """What an agent sends besides its models."""
        return Upload(add={}, each={})

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        """The server's next state; `averaged` is this round's, with the new models."""
        return averaged


class Independent(Start):
    """M random networks, as the paper's text has it."""

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.independent(self.M)}


class Tied(Start):
    """One random network, M copies, noise added to all but the first."""

    def __init__(self, M: int, noise: float) -> None:
        super().__init__(M)
        self.noise = noise

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(self.M, self.noise)}
