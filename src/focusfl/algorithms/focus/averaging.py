"""How the server of FOCUS averages the models of a cluster (eq. 6), also where some uploads are wrong.

Mean   sum_e pi_em theta_em / sum_e pi_em, from sums alone
Clip   every agent shortens its update of a cluster's model to twice the median length of the last round; the first
       round only measures. Lengths travel as a histogram, so the server still sees sums alone. This holds back an
       agent whose training goes wrong, not one that does not run this code
Trim   the server sees each agent's models and takes the mean of the middle values, coordinate by coordinate

server  Clip: {"clip": {"bound": [M]}}
upload  Mean: add {"theta": [M, ...], "pi": [M]};  Clip: and {"lengths": [M, 128]}
        Trim: each {"theta": [M, ...], "weight": [M]}
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from focusfl.core import Agent, Models, State, Upload, double, mean_or_keep, one_hot, scale_

EMPTY = 1e-20  # a cluster of less weight is held by nobody


class Averaging(ABC):
    """What an agent sends of its models, and how the server averages them."""

    def start(self, M: int) -> State:
        """The server's own state, at first."""
        return {}

    @abstractmethod
    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        """theta with these weights [m]; `trained` [m] bool: which of the models the agent trained."""

    @abstractmethod
    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        """The server's state with new models. A model that nobody holds stays as it was."""


class Mean(Averaging):
    """The weighted mean, from sums."""

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        return Upload(add={"theta": scale_(theta, weight), "pi": weight}, each={})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        return {**server, "w": mean_or_keep(server["w"], add["theta"], add["pi"])}


class Clip(Mean):
    """The weighted mean of updates that the agents have shortened."""

    SLACK = 2.0  # an update may be this many times as long as the median
    BINS, PER_DOUBLING, LEAST = 128, 2, -40  # of the histogram: lengths from 2^-40 to 2^24, two bins per doubling

    def start(self, M: int) -> State:
        return {"clip": {"bound": torch.zeros(M)}}

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        short, length = self.shorten(server["w"], theta, server["clip"]["bound"][in_use], agent.learnt)
        sums = super().upload(server, short, weight, trained, in_use, agent)
        return Upload(add=sums.add | {"lengths": self.histogram(length, weight * trained)}, each={})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        bound = self.next_bounds(server["clip"]["bound"], add["lengths"], in_use)
        return {**super().aggregate(server, add, each, in_use), "clip": {"bound": bound}}

    def shorten(self, w: Models, theta: Models, bound: Tensor, learnt: tuple[str, ...]) -> tuple[Models, Tensor]:
        """theta with updates no longer than bound_m, and how long they were, [m]. An update that is not finite
        becomes none."""
        finite = all_finite(theta)
        theta = {k: torch.where(_along(finite, v), v, w[k]) for k, v in theta.items()}
        update = {k: theta[k] - w[k] for k in learnt}
        squares = (u.square().reshape(len(u), -1).sum(1) for u in update.values())
        length = torch.where(finite, sum(squares, torch.zeros_like(bound)).sqrt(), torch.inf)
        by = (bound / length.clamp_min(1e-30)).clamp(max=1)
        return theta | {k: w[k] + u * _along(by, u) for k, u in update.items()}, length

    def histogram(self, length: Tensor, weight: Tensor) -> Tensor:
        """[m] -> [m, BINS]: weight_m in the bin of length_m."""
        at = (self.PER_DOUBLING * (length.clamp_min(1e-30).log2() - self.LEAST)).floor()
        return one_hot(at.clamp(0, self.BINS - 1).long(), self.BINS) * weight.unsqueeze(1)

    def next_bounds(self, before: Tensor, lengths: Tensor, in_use: Tensor) -> Tensor:
        """[M]: SLACK times the median length, by the upper end of its bin. A cluster that nobody held keeps its
        bound; clusters that are not in use get the widest of the others, for when they come into use."""
        total = lengths.sum(1)
        middle = (lengths.cumsum(1) >= total.unsqueeze(1) / 2).long().argmax(1)
        found = self.SLACK * 2.0 ** ((middle + 1) / self.PER_DOUBLING + self.LEAST)
        found = torch.where(total > EMPTY, found.to(before), before[in_use])
        return torch.full_like(before, float(found.max())).index_copy(0, in_use, found)


class Trim(Averaging):
    """The mean of the middle values."""

    CUT = 0.35  # of the weight at either end: the worst three of ten agents do not count

    def upload(
        self, server: State, theta: Models, weight: Tensor, trained: Tensor, in_use: Tensor, agent: Agent
    ) -> Upload:
        return Upload(add={}, each={"theta": theta, "weight": weight})

    def aggregate(self, server: State, add: State, each: State, in_use: Tensor) -> State:
        return {**server, "w": self.trimmed_mean(server["w"], each["theta"], each["weight"])}

    def trimmed_mean(self, w: Models, theta: Models, weight: Tensor) -> Models:
        """Of C agents' models [C, m, ...] with weights [C, m]: the mean without CUT of the weight at either end,
        coordinate by coordinate; w_m where nobody holds model m. Models that are not finite do not count."""
        finite = all_finite(theta, dims=2)
        theta = {k: torch.where(_along(finite, v), v, w[k]) for k, v in theta.items()}
        weight = weight * finite
        return {
            k: torch.stack([self._middle(v, theta[k][:, m], weight[:, m]) for m, v in enumerate(w[k])]) for k in w
        }

    def _middle(self, keep: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        total = double(weight).sum()
        if total <= EMPTY:
            return keep
        values, order = values.sort(0)
        weight = double(weight)[order]
        upto, low, high = weight.cumsum(0), self.CUT * total, (1 - self.CUT) * total
        counts = upto.clamp(low, high) - (upto - weight).clamp(low, high)
        return ((counts * values).sum(0) / (high - low)).to(keep.dtype)


def all_finite(theta: Models, dims: int = 1) -> Tensor:
    """Whether all numbers of each model are finite: [M], or [C, M] with dims=2."""
    return torch.stack([v.isfinite().reshape(*v.shape[:dims], -1).all(-1) for v in theta.values()]).all(0)


def _along(by: Tensor, v: Tensor) -> Tensor:
    """by with trailing axes of length 1, to multiply v."""
    return by.reshape(by.shape + (1,) * (v.dim() - by.dim()))
