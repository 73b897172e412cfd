"""Local: training alone, the baseline that federated learning has to beat.

server  {"w": [1, ...]}      the common start
agent   {"w": [1, ...]}      its own model
upload  nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from focusfl.core import Agent, Algorithm, Networks, Predictor, State, Upload
from focusfl.util.errors import CannotRun


@dataclass(frozen=True)
class Local(Algorithm):
    """Every agent trains alone; nothing is shared."""

    name: ClassVar[str] = "Local"
    paper: ClassVar[str] = "-"
    personal: ClassVar[bool] = True

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(1)}

    def enroll(self, server: State) -> State:
        return {"w": server["w"]}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        return {"w": agent.sgd(state["w"])}, Upload(add={}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return server

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(state["w"])[0]

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        raise CannotRun("Local shares no model, so there is none for a newcomer: let it train on its own")
