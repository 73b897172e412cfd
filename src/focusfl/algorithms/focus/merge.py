"""Fewer clusters while FOCUS trains: `M = "auto"` drops those that empty and joins those whose models agree.

server  {"turns": [], "home": [M]}                       how often agents took part since the split; where each
                                                         cluster's agents are now
        {"held": [M], "voters": [M], "agree": [M, M]}    the agents' sums, older ones fading
agent   {"before": []}                                   its loss under the last shared model it saw, -1: none
upload  add {"held": [M], "voters": [M], "agree": [M, M]}

An agent agrees that the model of another cluster would do if it keeps half of what the agent's own cluster has
gained over the shared model. Two clusters are joined when most agents of both agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.algorithms.focus.live import which
from focusfl.core import State

GAIN, NOISE = 0.5, 0.02  # another model may lose this of the gain over the shared model, or of the own loss
MOST = 0.8  # of the agents of both clusters have to agree
SETTLE = 5  # turns of each agent, on average, before clusters are joined: their models begin as one
FADE, EMPTY = 0.9, 0.01  # a cluster nobody held while all took part 44 times is dropped: 0.9^44 = 0.01


def enrolled() -> State:
    return {"before": torch.tensor(-1.0)}


def begin(M: int) -> State:
    sums = {"held": torch.ones(M), "voters": torch.zeros(M), "agree": torch.zeros(M, M)}
    return {"turns": torch.tensor(0), "home": torch.arange(M), **sums}


def votes(server: State, state: State, pi: Tensor, losses: Tensor) -> State:
    """What agent e adds: its labels, and for each cluster of its own whether each other model would do."""
    if "turns" not in server:
        return {}
    own, other = losses.unsqueeze(1), losses.unsqueeze(0)  # [M, 1], [1, M]
    slack = torch.maximum(GAIN * (state["before"] - own), NOISE * own)
    knows = (state["before"] >= 0).to(pi)
    agree = (other - own <= slack).to(pi) * (knows * pi).unsqueeze(1)
    return {"held": pi, "voters": knows * pi, "agree": agree}


def remembered(server: State, losses: Tensor) -> State:
    """The agent's loss under the shared model, as long as there is one."""
    return {"before": losses[0]} if "turns" in server and not int(server["parted"]) else {}


def settle(server: State, add: State, cohort: Tensor) -> State:
    """Count; then drop the cluster that is empty, or join the two that agree most."""
    if "turns" not in server or not int(server["parted"]):
        return server
    server = _counted(server, add, len(cohort))
    live, E = which(server), len(server["given"])
    if len(live) > 1 and server["held"][live].min() < EMPTY:
        return _without(server, live[server["held"][live].argmin()])
    share = server["agree"][live][:, live] / server["voters"][live].clamp_min(1e-20).unsqueeze(1)
    both = torch.minimum(share, share.T).triu(1)
    if len(live) < 2 or server["turns"] < SETTLE * E or both.max() < MOST:
        return server
    a, b = divmod(int(both.argmax()), len(live))
    return _joined(server, live[a], live[b])


def _counted(server: State, add: State, turns: int) -> State:
    """Votes count in the last turn before clusters may be joined, and from then on."""
    E = len(server["given"])
    live, counts = which(server), server["turns"] >= (SETTLE - 1) * E
    held, fade = server["held"].clone(), FADE ** (turns / E)
    held[live] = torch.maximum(add["held"].to(held), fade * held[live])
    voters, agree = fade * server["voters"], fade * server["agree"]
    if counts:
        voters[live] += add["voters"].to(voters)
        agree[live[:, None], live] += add["agree"].to(agree)
    return {**server, "turns": server["turns"] + turns, "held": held, "voters": voters, "agree": agree}


def _without(server: State, m: Tensor) -> State:
    stays = which(server) != m
    w = {k: v[stays] for k, v in server["w"].items()}
    return {**server, "w": w, "live": server["live"].index_fill(0, m, 0)}


def _joined(server: State, a: Tensor, b: Tensor) -> State:
    """Cluster b goes into a: one model, the mean over the agents of both; their labels are added up."""
    held, live = server["held"], which(server).tolist()
    part, i, j = held[a] / (held[a] + held[b]), live.index(int(a)), live.index(int(b))
    w = {k: v.clone() for k, v in server["w"].items()}
    for v in w.values():
        v[i] = v[j] + part * (v[i] - v[j])
    home = torch.where(server["home"] == b, a, server["home"])
    held = held.index_add(0, a.reshape(1), held[b].reshape(1))
    return _without({**server, "w": w, "home": home, "held": held}, b)
