"""How the clusters of FOCUS start.

`Start` is the interface. `Independent` and `Tied` use all M clusters from the first round and need no state
besides w and log_pi. `Split` (split.py) and `AutoSplit` (merge.py) begin with one shared model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from focusfl.core import Agent, Contribution, Models, Networks, State, Upload


@dataclass(frozen=True)
class Start(ABC):
    """Decides how the clusters start and which of the M are in use. It keeps state under keys of its own.

    Args:
        M: The largest number of clusters.
    """

    M: int

    @abstractmethod
    def start(self, networks: Networks, E: int) -> State:
        """Return the server's first state: {"w": models}, and what the start itself needs."""

    def enroll(self, device: torch.device | None = None) -> State:
        """Return the part of an agent's first state that the start needs."""
        return {}

    def downlink(self, server: State, e: Tensor) -> State:
        """Return what agent e receives."""
        return server

    def in_use(self, server: State) -> Tensor:
        """Return the clusters whose models are in w, ascending."""
        return torch.arange(self.M, device=next(iter(server["w"].values())).device)

    def settled(self, server: State) -> bool:
        """Return whether the clusters have been trained as such."""
        return True

    def keep_together(self, server: State) -> State | None:
        """Return a state in which one model goes on for all agents; None if their number is not to be found."""
        return None

    def log_labels(self, server: State, state: State) -> Tensor:
        """Return the agent's log labels of the clusters in use."""
        return torch.as_tensor(state["log_pi"])

    def next_state(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        """Return the agent's next state, with these log labels of the clusters in use."""
        return {"log_pi": log_pi}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """Return what an agent sends besides its models."""
        return Upload(add={}, each={})

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        """Return the server's next state; `averaged` is the server's state with the new models."""
        return averaged

    def released(self, server: State) -> State:
        """Return the server's state without what single agents sent (`Algorithm.released`)."""
        return server

    def contribution(self, averaged: Contribution, upload: Upload) -> Contribution:
        """Return what an upload claims; `averaged` is what it claims about the models."""
        return averaged


@dataclass(frozen=True)
class Independent(Start):
    """M random networks, as in the paper."""

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.independent(self.M)}


@dataclass(frozen=True)
class Tied(Start):
    """M copies of one random network, with noise added to all but the first.

    Args:
        M: The number of clusters.
        noise: The standard deviation of the noise, relative to that of each tensor.
    """

    noise: float

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(self.M, self.noise)}
