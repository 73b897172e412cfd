"""The start "split": train one shared model first, then group the agents by how they would change it.

server  {"w": [m, ...]}          models of the clusters in use; one before the split
        {"split": {
            "t": [],             rounds done
            "split_round": [],   the round of the split; 0 before it
            "in_use": [M],       1 for clusters in use, else 0
            "first_labels": [E, M]   log labels set by the split; an agent receives its own row
            "senders": [H],      agents whose sketch is stored, or -1. In the warm-up, agent e is at place e
            "sketches": [H, 256] their sketches; in the warm-up, sums over the rounds ...
            "counts": [H]        ... and the number of rounds in each sum
        }}
agent   {"split": {"has_label": []}}   1 once it has taken its first label
upload  each {"sketch": [256]}, until the split
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from focusfl.algorithms.focus import grouping
from focusfl.algorithms.focus.starts import Start
from focusfl.core import Agent, Contribution, Models, Networks, State, Upload, one_hot, row

SENT = ("senders", "sketches", "counts")  # what agents sent: neither other agents nor saved models get it
HEAD_START = 10.0  # the lead of a first log label: more than `prune` needs, and few rounds can reverse it
LOG_LABEL_NOT_IN_USE = -1e30  # the log label of a cluster that is not in use
MIN_SENDERS = 0.8  # the share of the agents whose sketches the split waits for ...
MAX_SENDERS = 1000  # ... and the largest number of sketches that are stored
MAX_WAIT = 20  # rounds that the split waits for them
CLEAR_SILHOUETTE = 0.25  # from here on groups are more than chance (Kaufman and Rousseeuw 1990)


@dataclass(frozen=True)
class Split(Start):
    """One shared model for `warmup` rounds, then M clusters by the agents' updates.

    Args:
        M: The number of clusters.
        warmup: The number of rounds of the shared model.
    """

    warmup: int

    def start(self, networks: Networks, E: int) -> State:
        H = min(E, MAX_SENDERS)
        split = {
            "t": torch.tensor(0),
            "split_round": torch.tensor(0),
            "in_use": (torch.arange(self.M) == 0).long(),
            "first_labels": torch.zeros(E, self.M),
            "senders": torch.full((H,), -1),
            "sketches": torch.zeros(H, grouping.SKETCH_SIZE),
            "counts": torch.zeros(H),
        }
        return {"w": networks.copies(1), "split": split}

    def enroll(self, device: torch.device | None = None) -> State:
        return {"split": {"has_label": torch.tensor(0, device=device)}}

    def released(self, server: State) -> State:
        return {**server, "split": {k: v for k, v in server["split"].items() if k not in SENT}}

    def downlink(self, server: State, e: Tensor) -> State:
        split = self.released(server)["split"]
        return {**server, "split": {**split, "first_labels": row(split["first_labels"], e)}}

    def in_use(self, server: State) -> Tensor:
        return torch.as_tensor(server["split"]["in_use"]).nonzero().flatten()

    def is_split(self, server: State) -> bool:
        """Return whether the split is done."""
        return bool(int(server["split"]["split_round"]))

    def settled(self, server: State) -> bool:
        """Return whether a round was trained after the split, whose models start as copies of the shared one."""
        split = server["split"]
        return self.M == 1 or (self.is_split(server) and int(split["t"]) > int(split["split_round"]))

    def log_labels(self, server: State, state: State) -> Tensor:
        """Return the agent's log labels of the clusters in use. Right after the split, the server sets them."""
        log_pi = torch.as_tensor(state["log_pi"])
        if self.is_split(server):
            log_pi = torch.where(state["split"]["has_label"] > 0, log_pi, server["split"]["first_labels"])
        return torch.log_softmax(self.after_merges(server, log_pi).index_select(0, self.in_use(server)), 0)

    def after_merges(self, server: State, log_pi: Tensor) -> Tensor:
        """Return the log labels [M] after clusters were merged; here they never are."""
        return log_pi

    def next_state(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        has_label = state["split"]["has_label"]
        all_log_pi = torch.full_like(torch.as_tensor(state["log_pi"]), LOG_LABEL_NOT_IN_USE)
        all_log_pi = all_log_pi.index_copy(0, self.in_use(server), log_pi)
        has_label = torch.ones_like(has_label) if self.is_split(server) else has_label
        return {**state, "log_pi": all_log_pi, "split": {"has_label": has_label}}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """Return, until the split, a sketch of how this agent would change the shared model."""
        if self.is_split(server):
            return Upload(add={}, each={})
        if agent.plain is not agent:
            theta = agent.plain.sgd(server["w"])
        update = {k: theta[k] - server["w"][k] for k in agent.trainable}
        return Upload(add={}, each={"sketch": grouping.sketch(update)})

    def contribution(self, averaged: Contribution, upload: Upload) -> Contribution:
        return averaged._replace(others={k: upload.each[k] for k in ("sketch",) if k in upload.each})

    def group(self, sketches: Tensor) -> tuple[Tensor, int]:
        """Return each agent's group, [C, 256] -> [C], the largest first, and the number of clusters to use."""
        return grouping.k_means(sketches, self.M), self.M

    def silhouette(self, sketches: Tensor) -> float:
        """Return how clear the groups of these sketches are."""
        sample = grouping.sample(sketches)
        return grouping.silhouette(sample, grouping.k_means(sample, self.M))

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        """Store the sketches of this round; after the warm-up, when enough agents have sent one, split.

        The split uses the last updates if all agents sent one and they show clear groups, else the means over the
        warm-up. An agent whose update is not finite counts as absent.
        """
        after = {**averaged, "split": {**server["split"], "t": server["split"]["t"] + 1}}
        if self.is_split(server):
            return after
        split, finite = after["split"], each["sketch"].isfinite().all(1)
        sketches, cohort = each["sketch"][finite], cohort[finite]
        E, H, t = len(split["first_labels"]), len(split["senders"]), int(split["t"])
        if not len(cohort):
            return after
        if self.M == 1:  # there is nothing to separate
            return self._split(after, sketches, cohort)
        if t <= self.warmup and E == H and len(cohort) >= MIN_SENDERS * E:
            split = self._accumulate(split, sketches, cohort)
            after = {**after, "split": split}
        if t < self.warmup:
            return after
        known = split["senders"] >= 0
        if t > self.warmup or not known.any():
            return self._wait(after, server["w"], sketches, cohort)
        last = grouping.clip_lengths(sketches)
        if len(cohort) == int(known.sum()) and self.silhouette(last) >= CLEAR_SILHOUETTE:
            return self._split(after, last, cohort)
        means = split["sketches"][known] / split["counts"][known].unsqueeze(1)
        return self._split(after, means, split["senders"][known])

    def _accumulate(self, split: State, sketches: Tensor, cohort: Tensor) -> State:
        """Add the sketches' differences from their mean to the stored sums. Nearly all agents participate.

        Every round has the same weight. What distinguishes an agent adds up over the warm-up; the noise of small
        batches, which differs from round to round, does not.
        """
        differences = grouping.clip_lengths(sketches)
        differences = differences - differences.mean(0)
        differences = (differences / torch.linalg.matrix_norm(differences).clamp_min(1e-30)).to(split["sketches"])
        return {
            **split,
            "senders": split["senders"].index_copy(0, cohort, cohort),
            "sketches": split["sketches"].index_add(0, cohort, differences),
            "counts": split["counts"].index_add(0, cohort, torch.ones_like(differences[:, 0])),
        }

    def _wait(self, server: State, before: Models, sketches: Tensor, cohort: Tensor) -> State:
        """Store the sketches of the few agents of this round, and split when there are enough.

        There are enough when most agents have sent one, or when half of all agents came and none of them is new:
        then the others are away. The last sketch of an agent counts. Until the split, the shared model stays as
        it was `before` this round, because only sketches of the same model are comparable.
        """
        split = server["split"]
        others = (split["senders"] >= 0) & ~torch.isin(split["senders"], cohort)
        agents = torch.cat([cohort, split["senders"][others]])
        sketches = torch.cat([sketches, split["sketches"][others].to(sketches)])
        E, H = len(split["first_labels"]), len(split["senders"])
        none_new = len(agents) == int((split["senders"] >= 0).sum()) and 2 * len(cohort) >= E
        enough = len(agents) >= min(MIN_SENDERS * E, MAX_SENDERS)
        if enough or none_new or int(split["t"]) >= self.warmup + MAX_WAIT:
            return self._split(server, grouping.clip_lengths(sketches), agents)
        senders, stored = torch.full_like(split["senders"], -1), torch.zeros_like(split["sketches"])
        senders[: len(agents)], stored[: len(agents)] = agents[:H], sketches[:H]
        return {**server, "w": before, "split": {**split, "senders": senders, "sketches": stored}}

    def _split(self, server: State, sketches: Tensor, agents: Tensor) -> State:
        """Copy the shared model for each group, and set the first labels of these agents.

        Agents without a sketch find their cluster by their losses.
        """
        return self.split_into(server, agents, *self.group(sketches))

    def split_into(self, server: State, agents: Tensor, group: Tensor, m: int) -> State:
        """Split these agents into m groups, [C]."""
        split = server["split"]
        w = {k: v.expand(m, *v.shape[1:]).clone() for k, v in server["w"].items()}
        changed = {
            "split_round": split["t"].clone(),
            "in_use": (torch.arange(self.M, device=group.device) < m).long(),
            "first_labels": split["first_labels"].index_copy(0, agents, HEAD_START * one_hot(group, self.M)),
            "senders": torch.full_like(split["senders"], -1),
            "sketches": torch.zeros_like(split["sketches"]),
            "counts": torch.zeros_like(split["counts"]),
        }
        return {**server, "w": w, "split": {**split, **changed}}
