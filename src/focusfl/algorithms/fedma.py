"""FedMA: federated matched averaging, one layer per round (Wang et al. 2020, arXiv 2002.06440).

N layers, of which N - 1 are hidden; H_i neurons in hidden layer i, L_i atoms after its match, at most G_i.

server  {"w": [1, ...]       the layers matched so far; hidden layers padded with zeros to G_i
         "width": [N - 1]    L_i (H_i before the match)
         "order": [E, max H] the atom of each neuron of agent e in the layer matched last
         "matched": [E]      layers that agent e was matched in; fewer than t: it has left
         "first": [1, ...]   the common start
         "t": []}            layers matched so far
agent   {"v": [1, ...]}      its own network; layers t, t + 1, ... are in use
down    w, width, t, and order and matched of this agent only
upload  each {"weight": [H_t, L_(t-1)], "bias": [H_t], "counts": [C]}: its layer t
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import matching
from focusfl.algorithms.dense_layers import cut, layer_names, require_dense_classifier, resize
from focusfl.algorithms.matching import BIAS_PRIOR, Floats, Ints, MatchOptions, class_shares, match
from focusfl.core import Agent, Algorithm, Contribution, Models, Networks, Predictor, State, Upload, one_hot, row


@dataclass(frozen=True)
class FedMA(Algorithm):
    """Round t matches layer t of all agents and freezes it; the agents continue to train the layers above.

    An agent that misses a layer cannot return: its later uploads are ignored and it keeps its own network. A
    round in which only such agents answer changes nothing. After the last layer all agents predict with the
    server's network.

    Args:
        sigma: The variance of an agent's neuron around its atom.
        sigma0: The variance of the atoms around the prior mean.
        gamma: How readily a neuron becomes a new atom.
        it: The number of passes in which every agent is matched again.
        limit: Beyond this number of atoms an agent may add only one.
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
        require_dense_classifier(self.name, w, classes, h, max_hidden=math.inf)

    def start(self, networks: Networks, E: int) -> State:
        first = networks.copies(1)
        H = [first[bias].shape[1] for _, bias in layer_names(first)[:-1]]
        return {
            "w": resize(first, [matching.max_atoms(E, h, self.it, self.limit) for h in H]),
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
        return common | {k: row(server[k], e) for k in ("order", "matched")}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        t, v, names = int(server["t"]), state["v"], layer_names(state["v"])
        if t == len(names):
            return state, Upload(add={}, each={})
        theta = agent.sgd(combine(server, v), freeze=[k for pair in names[:t] for k in pair])
        weight, bias = names[t]
        sent = {"weight": theta[weight][0], "bias": theta[bias][0], "counts": agent.class_counts()}
        own = {k: theta[k] for pair in names[t:] for k in pair}
        if t > 0:  # back to the agent's own neurons below, in case it misses the next layer
            own[weight] = theta[weight] @ atom_positions(server, v).mT
        updated = {k: torch.where(server["matched"] == t, x, v[k]) for k, x in own.items()}
        return {"v": v | updated}, Upload(add={}, each=sent)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        t, names = int(server["t"]), layer_names(server["first"])
        active = server["matched"][cohort] == t
        if t == len(names) or not active.any():
            return server
        W, b, n = (each[k][active].cpu().double().numpy() for k in ("weight", "bias", "counts"))
        neurons = np.concatenate([W, b[:, :, None]], 2)  # [J, H_t, L_(t-1) + 1]
        agents, order, width = cohort[active], server["order"].clone(), server["width"].clone()
        if t < len(width):
            z, layer = self.match(neurons, n.sum(1))
            order[agents, : z.shape[1]] = torch.from_numpy(z).to(order.device)
            width[t] = len(layer)
        else:  # class c is weighted by the agent's examples of it
            layer = np.einsum("jc,jcd->cd", class_shares(n), neurons)
        new = zip(names[t], (layer[:, :-1], layer[:, -1]), strict=True)
        w = server["w"] | {k: torch.as_tensor(x[None]).to(server["w"][k]) for k, x in new}
        G = [server["w"][bias].shape[1] for _, bias in names[:-1]]
        matched = server["matched"].index_fill(0, agents, t + 1)
        after = {"w": resize(w, G), "width": width, "order": order, "matched": matched, "t": server["t"] + 1}
        return {**server, **after}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        layer = {k: v for k, v in upload.each.items() if k != "counts"}
        return Contribution({}, layer, weight=upload.each.get("counts"), total=n)  # nothing after the last layer

    def match(self, neurons: Floats, n: Floats) -> tuple[Ints, Floats]:
        """Return the atom of each neuron, [J, H], and the atoms, [L, D]; the last entry of a neuron is its bias."""
        J, _, D = neurons.shape
        mu0 = BIAS_PRIOR * (np.arange(D) == D - 1)
        options = MatchOptions(mu0, 1 / self.sigma0, self.gamma, self.it, self.limit)
        return match(neurons, np.full((J, D), 1 / self.sigma), n, options)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        joint = h(combine(server, state["v"]))[0]
        if server["t"] > len(server["width"]):
            return joint
        return torch.where(server["matched"] == server["t"], joint, h(state["v"])[0])

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        outsider = {**server, "matched": torch.full_like(server["matched"], -1)}
        return self.downlink(outsider, torch.zeros_like(server["t"])), self.enroll(server)


def combine(server: State, v: Models) -> Models:
    """Return the network of the matched layers with an agent's own layers on top."""
    t, names = int(server["t"]), layer_names(v)
    if t == 0:
        return v
    matched = cut(server["w"], server["width"].tolist())
    w = v | {k: matched[k] for pair in names[:t] for k in pair}
    if t < len(names):
        weight, _ = names[t]
        w[weight] = v[weight] @ atom_positions(server, v)
    return w


def atom_positions(server: State, v: Models) -> Tensor:
    """Return 1 where neuron h of the agent is atom l of the layer matched last, [H_(t-1), L_(t-1)]."""
    t = int(server["t"])
    weight = v[layer_names(v)[t][0]]
    return one_hot(server["order"][: weight.shape[2]], int(server["width"][t - 1])).to(weight)
