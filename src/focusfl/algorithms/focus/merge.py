"""M = "auto": the start "split" that also finds how many clusters there are, and joins or drops some later.

server  {"merge": {
            "turns": [],         how often agents took part since the split
            "home": [M],         the cluster in which each cluster's agents are now
            "held": [M],         sum of the agents' labels, older ones fading
            "voters": [M],       ... of the agents that know their loss under the shared model
            "agree": [M, M]      ... who would also accept the other cluster's model
        }}
agent   {"merge": {"shared_loss": []}}   its loss under the last shared model it saw; -1: it saw none
upload  add {"held": [M], "voters": [M], "agree": [M, M]}

An agent accepts the model of another cluster if that keeps half of what the agent's own cluster has gained over the
shared model. Two clusters are joined when most agents of both agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.algorithms.focus import grouping
from focusfl.algorithms.focus.split import Split
from focusfl.core import Agent, Models, Networks, State, Upload, one_hot

MAX_CLUSTERS = 10
LOSS_OF_GAIN = 0.5  # another model may lose this share of the gain over the shared model ...
LOSS_OF_LOSS = 0.02  # ... or this share of the agent's own loss
MAJORITY = 0.8  # of the agents of both clusters have to agree
SETTLE = 5  # turns per agent, on average, before clusters are joined: their models begin as one
FADE, EMPTY = 0.9, 0.01  # a cluster that nobody held for 44 turns of everybody is dropped: 0.9^44 = 0.01


class AutoSplit(Split):
    """As many clusters as the agents' updates show, at most `max_clusters`; fewer where models agree."""

    def __init__(self, warmup: int, max_clusters: int = MAX_CLUSTERS) -> None:
        super().__init__(max_clusters, warmup)

    def start(self, networks: Networks, E: int) -> State:
        M = self.M
        sums = {"held": torch.ones(M), "voters": torch.zeros(M), "agree": torch.zeros(M, M)}
        return super().start(networks, E) | {"merge": {"turns": torch.tensor(0), "home": torch.arange(M), **sums}}

    def enroll(self, device: torch.device | None = None) -> State:
        return super().enroll(device) | {"merge": {"shared_loss": torch.tensor(-1.0, device=device)}}

    def groups(self, sketches: Tensor) -> Tensor:
        return grouping.how_many(sketches, self.M)

    def sharpness(self, sketches: Tensor) -> float:
        return grouping.sharpness(sketches, None, self.M)

    def groups_in_use(self, group: Tensor) -> int:
        return int(group.max()) + 1

    def joined(self, server: State, log_pi: Tensor) -> Tensor:
        """Labels of clusters that were joined add up."""
        into = torch.where(one_hot(server["merge"]["home"], len(log_pi)) > 0, 0, -torch.inf)  # [M, M]
        return (log_pi.unsqueeze(1) + into).logsumexp(0)

    def remember(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        after = super().remember(server, state, log_pi, losses)
        return after if self.is_split(server) else after | {"merge": {"shared_loss": losses[0]}}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """With its labels, and for each cluster of its own whether each other model would be acceptable."""
        shared_loss = state["merge"]["shared_loss"]
        own, other = losses.unsqueeze(1), losses.unsqueeze(0)  # [M, 1], [1, M]
        slack = torch.maximum(LOSS_OF_GAIN * (shared_loss - own), LOSS_OF_LOSS * own)
        knows = (shared_loss >= 0).to(pi)
        agree = (other - own <= slack).to(pi) * (knows * pi).unsqueeze(1)
        votes = {"held": pi, "voters": knows * pi, "agree": agree}
        return Upload(add=votes, each=super().upload(server, state, pi, losses, theta, agent).each)

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        """After the split: count the votes; then drop a cluster that is empty, or join the two that agree most."""
        after = super().aggregate(server, averaged, add, each, cohort)
        if not self.is_split(server):
            return after
        after = self._count(after, add, len(cohort))
        merge, in_use, E = after["merge"], self.in_use(after), len(after["split"]["first_labels"])
        if len(in_use) > 1 and merge["held"][in_use].min() < EMPTY:
            return self._drop(after, in_use[merge["held"][in_use].argmin()])
        share = merge["agree"][in_use][:, in_use] / merge["voters"][in_use].clamp_min(1e-20).unsqueeze(1)
        both = torch.minimum(share, share.T).triu(1)
        if len(in_use) < 2 or merge["turns"] < SETTLE * E or both.max() < MAJORITY:
            return after
        a, b = divmod(int(both.argmax()), len(in_use))
        return self._join(after, in_use[a], in_use[b])

    def _count(self, server: State, add: State, turns: int) -> State:
        """Votes count in the last turn before clusters may be joined, and from then on."""
        merge, in_use, E = server["merge"], self.in_use(server), len(server["split"]["first_labels"])
        held, fade = merge["held"].clone(), FADE ** (turns / E)
        held[in_use] = torch.maximum(add["held"].to(held), fade * held[in_use])
        voters, agree = fade * merge["voters"], fade * merge["agree"]
        if merge["turns"] >= (SETTLE - 1) * E:
            voters[in_use] += add["voters"].to(voters)
            agree[in_use[:, None], in_use] += add["agree"].to(agree)
        counts = {"turns": merge["turns"] + turns, "held": held, "voters": voters, "agree": agree}
        return {**server, "merge": {**merge, **counts}}

    def _drop(self, server: State, m: Tensor) -> State:
        stays = self.in_use(server) != m
        w = {k: v[stays] for k, v in server["w"].items()}
        return {
            **server,
            "w": w,
            "split": {**server["split"], "in_use": server["split"]["in_use"].index_fill(0, m, 0)},
        }

    def _join(self, server: State, a: Tensor, b: Tensor) -> State:
        """Cluster b goes into a: one model, the mean over the agents of both."""
        held, in_use = server["merge"]["held"], self.in_use(server).tolist()
        share, i, j = held[a] / (held[a] + held[b]), in_use.index(int(a)), in_use.index(int(b))
        w = {k: v.clone() for k, v in server["w"].items()}
        for v in w.values():
            v[i] = v[j] + share * (v[i] - v[j])
        home = torch.where(server["merge"]["home"] == b, a, server["merge"]["home"])
        held = held.index_add(0, a.reshape(1), held[b].reshape(1))
        return self._drop({**server, "w": w, "merge": {**server["merge"], "home": home, "held": held}}, b)
