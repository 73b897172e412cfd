"""PFNM: probabilistic federated neural matching (Yurochkin et al. 2019, arXiv 1905.12022).

H hidden neurons, L of them after the match, at most G. The matched network is padded with zeros to G.

server  {"w": [1, ...]       the matched network, G wide
         "width": []         L
         "first": [1, ...]   the common start
         "t": []}            rounds of training so far, at most `after`
agent   {"v": [1, ...]}      its own network
upload  each {"v": [1, ...], "counts": [C]}, only in the round of the match
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import matching
from focusfl.algorithms.dense_layers import cut, layer_names, require_dense_classifier, resize
from focusfl.algorithms.matching import BIAS_PRIOR, MatchOptions, class_shares, match
from focusfl.core import Agent, Algorithm, Contribution, Models, Networks, Predictor, State, Upload


@dataclass(frozen=True)
class PFNM(Algorithm):
    """Every agent trains alone; then the hidden neurons of all agents are matched once and averaged.

    The weights of a class are averaged by how many examples of it the agents have.

    Args:
        sigma: The variance of an agent's neuron around its atom.
        sigma0: The variance of the atoms around the prior mean.
        gamma: How readily a neuron becomes a new atom.
        it: The number of passes in which every agent is matched again.
        limit: Beyond this number of atoms an agent may add only one.
        after: The number of rounds of training before the match.
    """

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma: float = 1.0
    it: int = 5
    limit: int = 700
    after: int = 1

    name: ClassVar[str] = "PFNM"
    paper: ClassVar[str] = "Yurochkin et al. 2019, arXiv 1905.12022"

    def __post_init__(self) -> None:
        matching.require_options("pfnm", vars(self))

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        require_dense_classifier(self.name, w, classes, h, max_hidden=1)

    def start(self, networks: Networks, E: int) -> State:
        first = networks.copies(1)
        H = first[layer_names(first)[0][1]].shape[1]
        G = matching.max_atoms(E, H, self.it, self.limit)
        return {"w": resize(first, [G]), "width": torch.tensor(H), "first": first, "t": torch.tensor(0)}

    def enroll(self, server: State) -> State:
        return {"v": server["first"]}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        if server["t"] == self.after:
            return state, Upload(add={}, each={})
        v = agent.sgd(state["v"])
        last = server["t"] == self.after - 1
        return {"v": v}, Upload(add={}, each={"v": v, "counts": agent.class_counts()} if last else {})

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        if server["t"] == self.after:
            return server
        if not each:
            return {**server, "t": server["t"] + 1}
        w = self.match_networks(each["v"], each["counts"])
        (_, bias), _ = layer_names(w)
        L, G = w[bias].shape[1], server["w"][bias].shape[1]
        width = torch.full_like(server["width"], L)
        return {**server, "w": resize(w, [G]), "width": width, "t": server["t"] + 1}

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        return Contribution({}, upload.each.get("v", {}), weight=upload.each.get("counts"), total=n)

    def match_networks(self, v: Models, counts: Tensor) -> Models:
        """Return the network of the atoms, from the agents' networks [J, 1, ...] and their class counts."""
        W1, b1, W2, b2, n = (x.cpu().double().numpy() for x in (*(x[:, 0] for x in v.values()), counts))
        J, _, D = W1.shape
        f = class_shares(n)  # [J, C]
        neurons = np.concatenate([W1, b1[:, :, None], W2.transpose(0, 2, 1)], 2)  # [J, H, D + 1 + C]
        s = np.hstack([np.ones((J, D + 1)), f]) / self.sigma
        mu0 = BIAS_PRIOR * (np.arange(neurons.shape[2]) == D)
        options = MatchOptions(mu0, 1 / self.sigma0, self.gamma, self.it, self.limit)
        _, atoms = match(neurons, s, n.sum(1), options)
        bias = ((f * b2).sum(0) / self.sigma + BIAS_PRIOR / self.sigma0) / (1 / self.sigma0 + f.sum(0) / self.sigma)
        tensors = (atoms[:, :D], atoms[:, D], atoms[:, D + 1 :].T, bias)
        return {k: torch.as_tensor(x[None]).to(v[k]) for k, x in zip(v, tensors, strict=True)}

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        done = server["t"] == self.after
        return h(cut(server["w"], [int(server["width"])]) if done else state["v"])[0]
