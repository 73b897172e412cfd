"""q-FFL: fair resource allocation, solved by q-FedAvg (Li et al. 2020, arXiv 1905.10497).

server  {"w": [1, ...]}
agent   nothing
upload  add {"Delta": [1, ...], "h": []}      in double precision: F^q exceeds the range of single precision
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from focusfl.core import (
    Agent,
    Algorithm,
    Contribution,
    Networks,
    Predictor,
    State,
    Upload,
    double,
    scale,
    separate_statistics,
    vector,
)
from focusfl.core.stacks import MIN_WEIGHT
from focusfl.util.errors import InputError, require, require_choice


@dataclass(frozen=True)
class QFFL(Algorithm):
    """Agents with a larger loss F_e count for more: sum_e F_e^(q+1) / (q+1) is minimised.

    Args:
        q: Larger values make the losses more equal; 0 gives the plain mean. The FOCUS paper uses 0.1 to 10.
        at: "before" takes F_e from the shared model, as in the paper of q-FFL; "after" from the agent's trained
            model, which equalises less and matches the numbers of the FOCUS paper.
    """

    q: float = 1.0
    at: Literal["before", "after"] = field(default="before", metadata={"later": True})

    name: ClassVar[str] = "q-FFL"
    paper: ClassVar[str] = "Li et al. 2020, arXiv 1905.10497"

    def __post_init__(self) -> None:
        require("qffl.q", self.q, lambda v: 0 <= v <= 20, "from 0 to 20")
        require_choice("qffl.at", self.at, ("before", "after"))

    def start(self, networks: Networks, E: int) -> State:
        return {"w": networks.copies(1)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        w, q, L = server["w"], self.q, 1 / agent.lr
        before = agent.losses(w) if self.at == "before" else None
        theta = agent.sgd(w)
        F = double((agent.losses(theta) if before is None else before)[0]) + 1e-10
        Dw = {k: L * (double(w[k]) - double(theta[k])) for k in w}
        Delta = {k: F**q * v for k, v in Dw.items()}
        squared_norm = vector(separate_statistics(Dw, agent.trainable)[0]).square().sum()
        h = q * F ** (q - 1) * squared_norm + L * F**q
        return state, Upload(add={"Delta": Delta, "h": h}, each={})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        if add["h"] == 0:  # F > 0, so only the fixed point of a secure sum can round it to 0
            raise InputError(
                f"the losses to the power of q = {self.q:g} are too small for a secure sum (that of h is 0): "
                "use a smaller q or secure = false, with another folder as out"
            )
        step = 1 / add["h"]
        return {"w": {k: (v - add["Delta"][k] * step).to(v.dtype) for k, v in server["w"].items()}}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        h = upload.add["h"].reshape(1)  # depends on F_e, which only the agent knows
        return Contribution(server["w"], scale(upload.add["Delta"], 1 / h.clamp_min(MIN_WEIGHT)), weight=h)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return h(server["w"])[0]
