"""FedMA: matched averaging, one layer a round (Wang et al. 2020, arXiv 2002.06440).

N layers, of which N - 1 are hidden; H_i neurons in hidden layer i, L_i atoms after its match, at most G_i.

server  {"w": [1, ...]       the layers matched so far; hidden layers padded with zeros to G_i
         "width": [N - 1]    L_i (H_i before the match)
         "order": [E, max H] the atom of each neuron of agent e in the layer matched last
         "matched": [E]      layers that agent e was matched in; fewer than t: it is out
         "first": [1, ...]   the common start
         "t": []}            layers matched so far
agent   {"v": [1, ...]}      its own network; layers t, t + 1, ... are in use
down    w, width, t, and order and matched of this agent alone
upload  each {"weight": [H_t, L_(t-1)], "bias": [H_t], "counts": [C]}: its layer t
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import dense_layers as chain
from focusfl.algorithms import matching
from focusfl.algorithms.dense_layers import layers, resized
from focusfl.algorithms.matching import BIAS, Floats, Ints, Rule, match, shares
from focusfl.core import Agent, Algorithm, Models, Networks, Predictor, State, Upload, one_hot, row


@dataclass(frozen=True)
class FedMA(Algorithm):
    """Layer t of all agents is matched in round t and frozen; the layers above are trained on; one pass.

    Who misses a layer has no place in it: what it sends from then on is left aside, and it stays with the network
    it has; a round in which no one else answers changes nothing. After the last layer all predict with the network
    of the server.

    sigma, sigma0, gamma, it, limit  of the matching, as in PFNM
    """

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma: float = 7.0
    it: int = 5
    limit: int = 700

    name: ClassVar[str] = "FedMA"
    paper: ClassVar[str] = "Wang et al. 2020, arXiv 2002.06440"

    def __post_init__(self) -> None:
        matching.require_options("fedma", vars(self))

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        chain.check(self.name, w, classes, h, most=math.inf)

    def start(self, networks: Networks, E: int) -> State:
        first = networks.copies(1)
        H = [first[bias].shape[1] for _, bias in layers(first)[:-1]]
        return {
            "w": resized(first, [matching.largest(E, h, self.it, self.limit) for h in H]),
            "width": torch.tensor(H),
            "order": torch.zeros(E, max(H), dtype=torch.int64),
            "matched": torch.zeros(E, dtype=torch.int64),
            "first": first,
            "t": torch.tensor(0),
        }

    def enroll(self, server: State) -> State:
        return {"v": server["first"]}

    def downlink(self, server: State, e: Tensor) -> State:
        common = {k: server[k] for k in ("w", "width", "t")}
        return common | row({k: server[k] for k in ("order", "matched")}, e)

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        t, v, names = int(server["t"]), state["v"], layers(state["v"])
        if t == len(names):
            return state, Upload(add={}, each={})
        theta = agent.sgd(joined(server, v), freeze=[k for pair in names[:t] for k in pair])
        weight, bias = names[t]
        sent = {"weight": theta[weight][0], "bias": theta[bias][0], "counts": agent.class_counts()}
        own = {k: theta[k] for pair in names[t:] for k in pair}
        if t > 0:  # back to the agent's own neurons below, for the case that it misses the next layer
            own[weight] = theta[weight] @ places(server, v).mT
        kept = {k: torch.where(server["matched"] == t, x, v[k]) for k, x in own.items()}
        return {"v": v | kept}, Upload(add={}, each=sent)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        t, names = int(server["t"]), layers(server["first"])
        here = server["matched"][cohort] == t
        if t == len(names) or not here.any():
            return server
        W, b, n = (each[k][here].cpu().double().numpy() for k in ("weight", "bias", "counts"))
        neurons = np.concatenate([W, b[:, :, None]], 2)  # [J, H_t, L_(t-1) + 1]
        who, order, width = cohort[here], server["order"].clone(), server["width"].clone()
        if t < len(width):
            z, layer = self.match(neurons, n.sum(1))
            order[who, : z.shape[1]] = torch.from_numpy(z).to(order.device)
            width[t] = len(layer)
        else:  # class c: by how many examples of it the agent has
            layer = np.einsum("jc,jcd->cd", shares(n), neurons)
        new = zip(names[t], (layer[:, :-1], layer[:, -1]), strict=True)
        w = server["w"] | {k: torch.as_tensor(x[None]).to(server["w"][k]) for k, x in new}
        G = [server["w"][bias].shape[1] for _, bias in names[:-1]]
        matched = server["matched"].index_fill(0, who, t + 1)
        after = {"w": resized(w, G), "width": width, "order": order, "matched": matched, "t": server["t"] + 1}
        return {**server, **after}

    def match(self, neurons: Floats, n: Floats) -> tuple[Ints, Floats]:
        """The atom of each neuron, [J, H], and the atoms, [L, D]; the neurons' last entry is the bias."""
        J, _, D = neurons.shape
        mu0 = BIAS * (np.arange(D) == D - 1)
        rule = Rule(mu0, 1 / self.sigma0, self.gamma, self.it, self.limit)
        return match(neurons, np.full((J, D), 1 / self.sigma), n, rule)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        joint = h(joined(server, state["v"]))[0]
        if server["t"] > len(server["width"]):
            return joint
        return torch.where(server["matched"] == server["t"], joint, h(state["v"])[0])

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        stranger = {**server, "matched": torch.full_like(server["matched"], -1)}
        return self.downlink(stranger, torch.zeros_like(server["t"])), self.enroll(server)


def joined(server: State, v: Models) -> Models:
    """The matched layers, and an agent's own on top of them."""
    t, names = int(server["t"]), layers(v)
    if t == 0:
        return v
    matched = resized(server["w"], server["width"].tolist())
    w = v | {k: matched[k] for pair in names[:t] for k in pair}
    if t < len(names):
        weight, _ = names[t]
        w[weight] = v[weight] @ places(server, v)
    return w


def places(server: State, v: Models) -> Tensor:
    """1 where neuron h of the agent is atom l of the layer matched last, [H_(t-1), L_(t-1)]."""
    t = int(server["t"])
    weight = v[layers(v)[t][0]]
    return one_hot(server["order"][: weight.shape[2]], int(server["width"][t - 1])).to(weight)
