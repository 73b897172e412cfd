"""The start "split": train one shared model first, then group the agents by how they would change it.

server  {"w": [m, ...]}          models of the clusters in use: one before the split
        {"split": {
            "t": [],             rounds done
            "split_round": [],   the round of the split; 0 before it
            "in_use": [M],       1 for clusters in use, else 0
            "first_labels": [E, M]   log labels by the split; an agent receives its own row
            "senders": [H],      agents whose sketch is stored; -1: nobody. In the warm-up agent e is at place e
            "sketches": [H, 256] their sketches; in the warm-up sums over the rounds
            "counts": [H]        ... of so many rounds
        }}
agent   {"split": {"has_label": []}}   1 once it has taken its first label
upload  each {"sketch": [256]}, until the split
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.algorithms.focus import grouping
from focusfl.algorithms.focus.starts import Start
from focusfl.core import Agent, Models, Networks, State, Upload, one_hot, row

HEAD_START = 10.0  # nats by which a first label leads: more than `prune` asks for, few rounds to recover from
NOT_IN_USE = -1e30  # the log label of a cluster that is not in use
ENOUGH_AGENTS = 0.8  # share of the agents whose sketches the split waits for ...
MAX_SKETCHES = 1000  # ... and how many at most are stored
PATIENCE = 20  # rounds it waits for them
CLEAR_SILHOUETTE = 0.25  # from here on groups are more than chance (Kaufman and Rousseeuw 1990)


class Split(Start):
    """One shared model for `warmup` rounds, then M clusters by the agents' updates."""

    def __init__(self, M: int, warmup: int) -> None:
        super().__init__(M)
        self.warmup = warmup

    def start(self, networks: Networks, E: int) -> State:
        H = min(E, MAX_SKETCHES)
        split = {
            "t": torch.tensor(0),
            "split_round": torch.tensor(0),
            "in_use": (torch.arange(self.M) == 0).long(),
            "first_labels": torch.zeros(E, self.M),
            "senders": torch.full((H,), -1),
            "sketches": torch.zeros(H, grouping.SIZE),
            "counts": torch.zeros(H),
        }
        return {"w": networks.copies(1), "split": split}

    def enroll(self, device: torch.device | None = None) -> State:
        return {"split": {"has_label": torch.tensor(0, device=device)}}

    def downlink(self, server: State, e: Tensor) -> State:
        seen = {k: v for k, v in server["split"].items() if k not in ("senders", "sketches", "counts")}
        return {**server, "split": {**seen, **row({"first_labels": seen["first_labels"]}, e)}}

    def in_use(self, server: State) -> Tensor:
        return torch.as_tensor(server["split"]["in_use"]).nonzero().flatten()

    def is_split(self, server: State) -> bool:
        return bool(int(server["split"]["split_round"]))

    def labels(self, server: State, state: State) -> Tensor:
        """The first labels after the split are the server's."""
        log_pi = torch.as_tensor(state["log_pi"])
        if self.is_split(server):
            log_pi = torch.where(state["split"]["has_label"] > 0, log_pi, server["split"]["first_labels"])
        return torch.log_softmax(self.joined(server, log_pi).index_select(0, self.in_use(server)), 0)

    def joined(self, server: State, log_pi: Tensor) -> Tensor:
        """Log labels [M] after clusters were joined; here they never are."""
        return log_pi

    def all_labels(self, server: State, pi: Tensor) -> Tensor:
        return pi.new_zeros(self.M).index_copy(0, self.in_use(server), pi)

    def remember(self, server: State, state: State, log_pi: Tensor, losses: Tensor) -> State:
        has_label = state["split"]["has_label"]
        every = torch.full_like(torch.as_tensor(state["log_pi"]), NOT_IN_USE)
        every = every.index_copy(0, self.in_use(server), log_pi)
        now = torch.ones_like(has_label) if self.is_split(server) else has_label
        return {**state, "log_pi": every, "split": {"has_label": now}}

    def upload(
        self, server: State, state: State, pi: Tensor, losses: Tensor, theta: Models, agent: Agent
    ) -> Upload:
        """Until the split: a sketch of how this agent would change the shared model."""
        if self.is_split(server):
            return Upload(add={}, each={})
        update = {k: theta[k] - server["w"][k] for k in agent.learnt}
        return Upload(add={}, each={"sketch": grouping.sketch(update)})

    def aggregate(self, server: State, averaged: State, add: State, each: State, cohort: Tensor) -> State:
        after = {**averaged, "split": {**server["split"], "t": server["split"]["t"] + 1}}
        return after if self.is_split(server) else self._listen(after, server["w"], each["sketch"], cohort)

    def groups(self, sketches: Tensor) -> Tensor:
        """[C, 256] -> [C]: each agent's group, the largest first."""
        return grouping.groups(sketches, self.M)

    def sharpness(self, sketches: Tensor) -> float:
        """How clear the groups are: their silhouette."""
        return grouping.sharpness(sketches, self.M)

    def _listen(self, server: State, before: Models, sketches: Tensor, cohort: Tensor) -> State:
        """Store these sketches; after the warm-up, with those of enough agents, split.

        By the last update, where all sent it and it shows clear groups; else by the mean over the warm-up. An agent
        whose update is not finite counts as absent.
        """
        split, finite = server["split"], sketches.isfinite().all(1)
        sketches, cohort = sketches[finite], cohort[finite]
        E, H, t = len(split["first_labels"]), len(split["senders"]), int(split["t"])
        if not len(cohort):
            return server
        if self.M == 1:  # nobody to separate
            return self._split(server, sketches, cohort)
        if t <= self.warmup and E == H and len(cohort) >= ENOUGH_AGENTS * E:
            split = self._add_up(split, sketches, cohort)
            server = {**server, "split": split}
        if t < self.warmup:
            return server
        known = split["senders"] >= 0
        if t > self.warmup or not known.any():
            return self._wait(server, before, sketches, cohort)
        last = grouping.bounded(sketches)
        if len(cohort) == int(known.sum()) and self.sharpness(last) >= CLEAR_SILHOUETTE:
            return self._split(server, last, cohort)
        means = split["sketches"][known] / split["counts"][known].unsqueeze(1)
        return self._split(server, means, split["senders"][known])

    def _add_up(self, split: State, sketches: Tensor, cohort: Tensor) -> State:
        """Nearly all agents are there: what sets each apart from their mean adds up over the warm-up, every round
        with the same weight; the noise of small batches, different in every round, does not."""
        apart = grouping.bounded(sketches)
        apart = apart - apart.mean(0)
        apart = (apart / torch.linalg.matrix_norm(apart).clamp_min(1e-30)).to(split["sketches"])
        return {
            **split,
            "senders": split["senders"].index_copy(0, cohort, cohort),
            "sketches": split["sketches"].index_add(0, cohort, apart),
            "counts": split["counts"].index_add(0, cohort, torch.ones_like(apart[:, 0])),
        }

    def _wait(self, server: State, before: Models, sketches: Tensor, cohort: Tensor) -> State:
        """Few agents per round: split when enough of them have sent a sketch, or when half of all came and none of
        them is new, since then the others are away. Of an agent that sent two, the last counts.

        Until then the shared model stays as it was `before` this round: only sketches of one model compare.
        """
        split = server["split"]
        others = (split["senders"] >= 0) & ~torch.isin(split["senders"], cohort)
        who = torch.cat([cohort, split["senders"][others]])
        sketches = torch.cat([sketches, split["sketches"][others].to(sketches)])
        E, H = len(split["first_labels"]), len(split["senders"])
        nobody_new = len(who) == int((split["senders"] >= 0).sum()) and 2 * len(cohort) >= E
        enough = len(who) >= min(ENOUGH_AGENTS * E, MAX_SKETCHES)
        if enough or nobody_new or int(split["t"]) >= self.warmup + PATIENCE:
            return self._split(server, grouping.bounded(sketches), who)
        senders, stored = torch.full_like(split["senders"], -1), torch.zeros_like(split["sketches"])
        senders[: len(who)], stored[: len(who)] = who[:H], sketches[:H]
        return {**server, "w": before, "split": {**split, "senders": senders, "sketches": stored}}

    def _split(self, server: State, sketches: Tensor, who: Tensor) -> State:
        """A copy of the shared model for each group. Who sent a sketch gets its group as first label; the others
        will find theirs by their losses."""
        split, group = server["split"], self.groups(sketches)
        m = self.groups_in_use(group)
        w = {k: v.expand(m, *v.shape[1:]).clone() for k, v in server["w"].items()}
        done = {
            "split_round": split["t"].clone(),
            "in_use": (torch.arange(self.M, device=group.device) < m).long(),
            "first_labels": split["first_labels"].index_copy(0, who, HEAD_START * one_hot(group, self.M)),
            "senders": torch.full_like(split["senders"], -1),
            "sketches": torch.zeros_like(split["sketches"]),
            "counts": torch.zeros_like(split["counts"]),
        }
        return {**server, "w": w, "split": {**split, **done}}

    def groups_in_use(self, group: Tensor) -> int:
        """How many clusters there are after the split."""
        return self.M
