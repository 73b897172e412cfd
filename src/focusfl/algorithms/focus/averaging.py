"""How the server of FOCUS averages the models of a cluster (eq. 6), also if some uploads are wrong.

Mean   sum_e pi_em theta_em / sum_e pi_em, from sums only.
Clip   Every agent shortens its update of a cluster's model to at most twice the median length of the last round;
       the first round only measures lengths. Agents send lengths as a histogram, so the server still sees only
       sums. This protects against agents whose training goes wrong, not against agents that do not run this code.
Trim   The server sees each agent's models and takes the mean of the middle values of each coordinate.

server  Clip: {"clip": {"bound": [M]}}
upload  Mean: add {"theta": [M, ...], "pi": [M]};  Clip: also {"lengths": [M, 128]}
        Trim: each {"theta": [M, ...], "weight": [M]}
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from focusfl.core import (
    Agent,
    Contribution,
    Models,
    State,
    Upload,
    broadcast,
    double,
    mean_or_keep,
    one_hot,
    scale,
    weighted_contribution,
)
from focusfl.core.stacks import MIN_WEIGHT


class Averaging(ABC):
    """Decides what an agent sends of its models, and how the server averages them."""

    def start(self, M: int) -> State:
        """Return the part of the server's first state that averaging M models needs."""
        return {}

    @abstractmethod
    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        """Return what an agent sends of its models.

        Args:
            server: What the agent received.
            theta: The models after local training, [m, ...].
            weight: Their weights in the average, [m].
            trained: Which of the models the agent trained, [m] bool.
            in_use: The clusters that the m models belong to, [m].
            agent: The agent.
        """

    @abstractmethod
    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        """Return the server's state with averaged models. A model that no agent holds does not change."""

    @abstractmethod
    def contribution(self, server: State, upload: Upload, total: Tensor, agents: int) -> Contribution:
        """Return what an upload, or the sum of those of several agents, claims about the models.

        Args:
            server: What the agent received.
            upload: The upload.
            total: What the weights must add up to, [].
            agents: The number of agents in the sum.
        """


class Mean(Averaging):
    """The weighted mean, from sums only."""

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        return Upload(add={"theta": scale(theta, weight, in_place=True), "pi": weight}, each={})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        return {**server, "w": mean_or_keep(server["w"], add["theta"], add["pi"])}

    def contribution(self, server: State, upload: Upload, total: Tensor, agents: int) -> Contribution:
        weight = upload.add["pi"]
        return weighted_contribution(server["w"], upload.add["theta"], weight, total)


class Clip(Mean):
    """The weighted mean of updates that the agents shorten if they are too long."""

    MAX_RELATIVE_LENGTH = 2.0  # of an update, relative to the median
    # The histogram of lengths goes from 2^-40 to 2^24, with two bins per doubling.
    BINS, BINS_PER_DOUBLING, LOG2_MIN = 128, 2, -40

    def start(self, M: int) -> State:
        return {"clip": {"bound": torch.zeros(M)}}

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        short, length = self.shorten(server["w"], theta, server["clip"]["bound"][in_use], agent.trainable)
        sums = super().upload(server, short, weight, trained, in_use, agent)
        return Upload(add=sums.add | {"lengths": self.histogram(length, weight * trained)}, each={})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        bound = self.next_bounds(server["clip"]["bound"], add["lengths"], in_use)
        return {**super().aggregate(server, add, each, in_use), "clip": {"bound": bound}}

    def contribution(self, server: State, upload: Upload, total: Tensor, agents: int) -> Contribution:
        lengths, weight = upload.add["lengths"], upload.add["pi"]  # a cluster's weight is in one bin, or in none
        shares = {"lengths": lengths, "weight - lengths": weight - lengths.sum(1)}
        shares = {k: v * (agents / total) for k, v in shares.items()}
        return super().contribution(server, upload, total, agents)._replace(shares=shares)

    def shorten(self, w: Models, theta: Models, bound: Tensor, trainable: tuple[str, ...]) -> tuple[Models, Tensor]:
        """Return theta with updates no longer than bound_m, and their original lengths, [m].

        An update that is not finite is removed; its length is infinite.
        """
        finite = all_finite(theta)
        theta = {k: torch.where(broadcast(finite, v), v, w[k]) for k, v in theta.items()}
        update = {k: theta[k] - w[k] for k in trainable}
        squares = (u.square().reshape(len(u), -1).sum(1) for u in update.values())
        length = torch.where(finite, sum(squares, torch.zeros_like(bound)).sqrt(), torch.inf)
        by = (bound / length.clamp_min(1e-30)).clamp(max=1)
        return theta | {k: w[k] + u * broadcast(by, u) for k, u in update.items()}, length

    def histogram(self, length: Tensor, weight: Tensor) -> Tensor:
        """Return histograms with weight_m in the bin of length_m: [m] -> [m, BINS]."""
        at = (self.BINS_PER_DOUBLING * (length.clamp_min(1e-30).log2() - self.LOG2_MIN)).floor()
        return one_hot(at.clamp(0, self.BINS - 1).long(), self.BINS) * weight.unsqueeze(1)

    def next_bounds(self, before: Tensor, lengths: Tensor, in_use: Tensor) -> Tensor:
        """Return the bounds of the next round, [M]: MAX_RELATIVE_LENGTH times the upper end of the median's bin.

        A cluster that no agent held keeps its bound. Clusters that are not in use get the largest of the others.
        """
        total = lengths.sum(1)
        middle = (lengths.cumsum(1) >= total.unsqueeze(1) / 2).long().argmax(1)
        bound = self.MAX_RELATIVE_LENGTH * 2.0 ** ((middle + 1) / self.BINS_PER_DOUBLING + self.LOG2_MIN)
        bound = torch.where(total > MIN_WEIGHT, bound.to(before), before[in_use])
        return torch.full_like(before, float(bound.max())).index_copy(0, in_use, bound)


class Trim(Averaging):
    """The weighted mean of the middle values of each coordinate."""

    TRIMMED_SHARE = 0.35  # of the weight, at either end: the worst three of ten agents do not count

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        return Upload(add={}, each={"theta": theta, "weight": weight})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        return {**server, "w": self.trimmed_mean(server["w"], each["theta"], each["weight"])}

    def contribution(self, server: State, upload: Upload, total: Tensor, agents: int) -> Contribution:
        theta, weight = upload.each["theta"], upload.each["weight"]
        return weighted_contribution(server["w"], scale(theta, weight), weight, total)

    def trimmed_mean(self, w: Models, theta: Models, weight: Tensor) -> Models:
        """Return the mean of each coordinate without TRIMMED_SHARE of the weight at either end.

        Models that are not finite do not count. A model that no agent holds stays w_m.

        Args:
            w: The models before, [m, ...].
            theta: The models of C agents, [C, m, ...].
            weight: Their weights, [C, m].
        """
        finite = all_finite(theta, dims=2)
        theta = {k: torch.where(broadcast(finite, v), v, w[k]) for k, v in theta.items()}
        weight = weight * finite
        return {
            k: torch.stack([self._middle(v, theta[k][:, m], weight[:, m]) for m, v in enumerate(w[k])]) for k in w
        }

    def _middle(self, before: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        """Return the trimmed mean of one tensor of one model."""
        total = double(weight).sum()
        if total <= MIN_WEIGHT:
            return before
        values, order = values.sort(0)
        weight = double(weight)[order]
        up_to, low, high = weight.cumsum(0), self.TRIMMED_SHARE * total, (1 - self.TRIMMED_SHARE) * total
        counts = up_to.clamp(low, high) - (up_to - weight).clamp(low, high)
        return ((counts * values).sum(0) / (high - low)).to(before.dtype)


def all_finite(theta: Models, dims: int = 1) -> Tensor:
    """Return whether all numbers of each model are finite: [M], or [C, M] with dims=2."""
    return torch.stack([v.isfinite().reshape(*v.shape[:dims], -1).all(-1) for v in theta.values()]).all(0)
