"""M = "auto": the start "split" that also finds the number of clusters, and merges or drops clusters later.

server  {"merge": {
            "turns": [],         how often agents participated since the split
            "home": [M],         the cluster that each cluster's agents are in now
            "held": [M],         sum of the agents' labels; older ones fade
            "voters": [M],       the same, of the agents that know their loss under the shared model
            "agree": [M, M]      the same, of the voters that would also accept the other cluster's model
        }}
agent   {"merge": {"shared_loss": []}}   its loss under the last shared model it saw, or -1
upload  add {"held": [M], "voters": [M], "agree": [M, M]}

An agent accepts the model of another cluster if that model keeps half of what the agent's own cluster has gained
over the shared model. Two clusters are merged when most agents of both agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from focusfl.algorithms.focus import grouping
from focusfl.algorithms.focus.split import Split
from focusfl.core import Agent, Contribution, Models, Networks, State, Upload, one_hot

MAX_CLUSTERS = 10
MAX_GAIN_LOST = 0.5  # an acceptable model loses at most this share of the gain over the shared model ...
MAX_LOSS_INCREASE = 0.02  # ... or at most this share of the agent's own loss
MIN_AGREEMENT = 0.8  # the share of the agents of each of two clusters that must agree to merge them
MIN_TURNS = 5  # turns per agent, on average, before clusters are merged: their models start as one
FADE = 0.9  # what remains of old labels after a turn of every agent
MIN_HELD = 0.01  # a cluster is dropped below this, after 44 turns without agents: 0.9^44 = 0.01


@dataclass(frozen=True)
class AutoSplit(Split):
    """As many clusters as the agents' updates show; later, clusters whose models agree are merged.

    Args:
        M: The largest number of clusters.
        warmup: The number of rounds of the shared model.
    """

    def start(self, networks: Networks, E: int) -> State:
        M = self.M
        sums = {"held": torch.ones(M), "voters": torch.zeros(M), "agree": torch.zeros(M, M)}
        return super().start(networks, E) | {"merge": {"turns": torch.tensor(0), "home": torch.arange(M), **sums}}

    def enroll(self, device: torch.device | None = None) -> State:
        return super().enroll(device) | {"merge": {"shared_loss": torch.tensor(-1.0, device=device)}}

    def group(self, sketches: Tensor) -> tuple[Tensor, int]:
        group = grouping.find_groups(sketches, self.M)
        return group, int(group.max()) + 1

    def keep_together(self, server: State) -> State | None:
        """Return a state from before the split, as if it had found a single group."""
        if self.is_split(server):
            return None
        nobody = server["split"]["senders"][:0]
        together = self.split_into(server, nobody, nobody, 1)
        done = server["split"]["t"] + 1  # it is settled: nothing is new
        return {**together, "split": {**together["split"], "t": done}}

    def silhouette(self, sketches: Tensor) -> float:
        return grouping.best_silhouette(grouping.sample(sketches), self.M)[0]

    def after_merges(self, server: State, log_pi: Tensor) -> Tensor:
        """Return the log labels [M] after clusters were merged: the labels of merged clusters add up."""
        into = torch.where(one_hot(server["merge"]["home"], len(log_pi)) > 0, 0, -torch.inf)  # [M, M]
        return (log_pi.unsqueeze(1) + into).logsumexp(0)

    def next_state(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        after = super().next_state(server, state, log_pi, losses)
        return after if self.is_split(server) else after | {"merge": {"shared_loss": losses[0]}}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """Return also the agent's labels, and for each of its clusters which other models it would accept."""
        shared_loss = state["merge"]["shared_loss"]
        own, other = losses.unsqueeze(1), losses.unsqueeze(0)  # [M, 1], [1, M]
        slack = torch.maximum(MAX_GAIN_LOST * (shared_loss - own), MAX_LOSS_INCREASE * own)
        knows = (shared_loss >= 0).to(pi)
        agree = (other - own <= slack).to(pi) * (knows * pi).unsqueeze(1)
        votes = {"held": pi, "voters": knows * pi, "agree": agree}
        return Upload(add=votes, each=super().upload(server, state, pi, losses, theta, agent).each)

    def contribution(self, averaged: Contribution, upload: Upload) -> Contribution:
        held, voters, agree = (upload.add[k] for k in ("held", "voters", "agree"))
        votes = {"held": held, "held - voters": held - voters, "voters - agree": voters.unsqueeze(1) - agree}
        shares = {**averaged.shares, **votes, "voters": voters, "agree": agree}
        return super().contribution(averaged, upload)._replace(shares=shares)

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        """After the split, count the votes; then drop an empty cluster, or merge the two that agree most."""
        after = super().aggregate(server, averaged, add, each, cohort)
        if not self.is_split(server):
            return after
        after = self._count(after, add, len(cohort))
        merge, in_use, E = after["merge"], self.in_use(after), len(after["split"]["first_labels"])
        if len(in_use) > 1 and merge["held"][in_use].min() < MIN_HELD:
            return self._drop(after, in_use[merge["held"][in_use].argmin()])
        share = merge["agree"][in_use][:, in_use] / merge["voters"][in_use].clamp_min(1e-20).unsqueeze(1)
        both = torch.minimum(share, share.T).triu(1)
        if len(in_use) < 2 or merge["turns"] < MIN_TURNS * E or both.max() < MIN_AGREEMENT:
            return after
        a, b = divmod(int(both.argmax()), len(in_use))
        return self._merge(after, in_use[a], in_use[b])

    def _count(self, server: State, add: State, turns: int) -> State:
        """Add this round's votes. They count from the last turn before clusters may be merged."""
        merge, in_use, E = server["merge"], self.in_use(server), len(server["split"]["first_labels"])
        held, fade = merge["held"].clone(), FADE ** (turns / E)
        held[in_use] = torch.maximum(add["held"].to(held), fade * held[in_use])
        voters, agree = fade * merge["voters"], fade * merge["agree"]
        if merge["turns"] >= (MIN_TURNS - 1) * E:
            voters[in_use] += add["voters"].to(voters)
            agree[in_use[:, None], in_use] += add["agree"].to(agree)
        counts = {"turns": merge["turns"] + turns, "held": held, "voters": voters, "agree": agree}
        return {**server, "merge": {**merge, **counts}}

    def _drop(self, server: State, m: Tensor) -> State:
        """Drop cluster m and its model."""
        stays, split = self.in_use(server) != m, server["split"]
        w = {k: v[stays] for k, v in server["w"].items()}
        return {**server, "w": w, "split": {**split, "in_use": split["in_use"].index_fill(0, m, 0)}}

    def _merge(self, server: State, a: Tensor, b: Tensor) -> State:
        """Merge cluster b into a. Its model is the mean over the agents of both."""
        held, in_use = server["merge"]["held"], self.in_use(server).tolist()
        share, i, j = held[a] / (held[a] + held[b]), in_use.index(int(a)), in_use.index(int(b))
        w = {k: v.clone() for k, v in server["w"].items()}
        for v in w.values():
            v[i] = v[j] + share * (v[i] - v[j])
        home = torch.where(server["merge"]["home"] == b, a, server["merge"]["home"])
        held = held.index_add(0, a.reshape(1), held[b].reshape(1))
        return self._drop({**server, "w": w, "merge": {**server["merge"], "home": home, "held": held}}, b)
