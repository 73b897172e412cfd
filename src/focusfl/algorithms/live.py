"""The clusters in use: what the start "split" keeps beside FOCUS's own state, and how labels are handed out.

server  {"t": [], "live": [M], "given": [E, M]}    the round, the clusters in use (0, 1), first labels
agent   {"told": []}                               has it taken its first label? (0, 1)

Other starts have none of it; then all clusters are in use, and labels stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.algorithms import split
from focusfl.core import Models, State, one_hot, row

SURE = 10.0  # nats by which a first label leads: more than `prune` asks for, few rounds to come back from


def begin(w: Models, E: int) -> State:
    """One shared model, the first."""
    M = len(next(iter(w.values())))
    return {"w": w, "t": torch.tensor(0), "live": (torch.arange(M) == 0).long(), "given": torch.zeros(E, M)}


def view(server: State, e: Tensor) -> State:
    """What agent e receives: the models in use, and its own first label."""
    if "live" not in server:
        return server
    live = which(server)
    return {**server, "w": {k: v[live] for k, v in server["w"].items()}, **row({"given": server["given"]}, e)}


def which(server: State) -> Tensor:
    return torch.as_tensor(server["live"]).nonzero().flatten()


def labels(server: State, state: State, warmup: int) -> Tensor:
    """Log labels of the clusters in use. The first ones after the split are the server's."""
    log_pi = torch.as_tensor(state["log_pi"])
    if "live" not in server:
        return log_pi
    if int(server["t"]) >= warmup:
        log_pi = torch.where(state["told"] > 0, log_pi, server["given"])
    return torch.log_softmax(log_pi.index_select(0, which(server)), 0)


def kept(server: State, state: State, log_pi: Tensor, warmup: int) -> State:
    """The agent's state with these labels of the clusters in use."""
    if "live" not in server:
        return {"log_pi": log_pi}
    told = torch.ones_like(state["told"]) if int(server["t"]) >= warmup else state["told"]
    return {"log_pi": torch.as_tensor(state["log_pi"]).index_copy(0, which(server), log_pi), "told": told}


def advance(server: State, means: Models) -> State:
    """The next round, with new models of the clusters in use."""
    w = {k: v.index_copy(0, which(server), means[k]) for k, v in server["w"].items()}
    return {**server, "w": w, "t": server["t"] + 1}


def part(server: State, sketches: Tensor, cohort: Tensor, M: int | None) -> State:
    """The shared model for each of M groups (None: as many as show). Who was there learns its group; the others
    will find theirs by their losses."""
    slots = len(server["live"])
    group = split.how_many(sketches) if M is None else split.groups(sketches, M)
    M = int(group.max()) + 1 if M is None else M
    live = (torch.arange(slots, device=group.device) < M).long()
    given = server["given"].index_copy(0, cohort, SURE * one_hot(group, slots))
    w = {k: v[:1].expand(v.shape).clone() for k, v in server["w"].items()}
    return {**server, "w": w, "live": live, "given": given}
