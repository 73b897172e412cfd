"""Make agents differ: a federation in, a federation out, so that they compose with any data set and each other.

An agent whose data were made worse follows another distribution, so it leaves its true cluster for one that it
shares with those treated alike; its test data change with its training data. Fewer examples are no other
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.federation import Federation, Rows
from focusfl.util.errors import InputError, require, whole


def label_noise(fed: Federation, agents: Sequence[int], p: float, seed: int = 0) -> Federation:
    """With probability p a label is replaced by one of the other classes."""
    require("shift.p", p, 0 <= p <= 1, "from 0 to 1")

    def noisy(data: Data, rng: np.random.Generator) -> Data:
        classes = _classes(fed)
        hit = torch.from_numpy(rng.random(len(data.y)) < p)
        other = torch.from_numpy(rng.integers(1, classes, len(data.y)))
        return Data(data.x, torch.where(hit, (data.y + other) % classes, data.y))

    return _worse(fed, agents, noisy, seed, "label-noise")


def free_riders(fed: Federation, agents: Sequence[int], seed: int = 0) -> Federation:
    """Labels drawn at random: nothing can be learnt from these agents."""

    def random_labels(data: Data, rng: np.random.Generator) -> Data:
        return Data(data.x, torch.from_numpy(rng.integers(0, _classes(fed), len(data.y))))

    return _worse(fed, agents, random_labels, seed, "free-riders")


def feature_noise(fed: Federation, agents: Sequence[int], sigma: float, seed: int = 0) -> Federation:
    """N(0, sigma^2) on every feature."""
    require("shift.sigma", sigma, sigma >= 0, "0 or more")
    if not fed.training.x.is_floating_point():
        raise InputError(f"feature-noise: the features of {fed.name} are no real numbers")

    def blurred(data: Data, rng: np.random.Generator) -> Data:
        noise = rng.normal(0, sigma, tuple(data.x.shape)).astype("float32")
        return Data(data.x + torch.from_numpy(noise), data.y)

    return _worse(fed, agents, blurred, seed, "feature-noise")


def unequal(fed: Federation, ratio: float, seed: int = 0) -> Federation:
    """Unequal sizes: agents keep shares of their training data evenly spaced in logs, 1 to 1/ratio, shuffled."""
    require("shift.ratio", ratio, ratio >= 1, "1 or more")
    _seed(seed)
    rng = np.random.default_rng([seed, 11])
    shares = rng.permutation(np.geomspace(1, 1 / ratio, fed.E))
    parts = []
    for e, share in enumerate(shares):
        data = fed.train(e)
        kept = max(round(len(data.y) * share), 1)
        rows = torch.from_numpy(np.sort(rng.permutation(len(data.y))[:kept]))
        parts.append(Data(data.x[rows], data.y[rows]))
    return replace(fed, name=f"{fed.name}+unequal", training=Rows.join(parts))


def tiny(fed: Federation, agents: Sequence[int], n: int = 5, seed: int = 0) -> Federation:
    """These agents keep n training examples, drawn at random; what they are tested on stays."""
    return _few(fed, agents, n, seed, "tiny", lambda rows, size: rows)


def duplicates(fed: Federation, agents: Sequence[int], n: int = 5, seed: int = 0) -> Federation:
    """These agents seem as large as they were, but have n training examples again and again."""
    return _few(fed, agents, n, seed, "duplicates", lambda rows, size: rows[torch.arange(size) % len(rows)])


def dirichlet(fed: Federation, alpha: float, seed: int = 0) -> Federation:
    """Label skew: within each true cluster the examples are dealt out anew, class by class, with Dirichlet(alpha)
    shares (Hsu et al. 2019). Small alpha: an agent sees few classes. Training and test follow the same shares."""
    require("shift.alpha", alpha, alpha > 0, "a positive number")
    _seed(seed)
    classes = _classes(fed)
    rng = np.random.default_rng([seed, 12])
    groups = torch.zeros(fed.E, dtype=torch.long) if fed.clusters is None else fed.clusters
    shares = _some(rng.dirichlet([alpha] * fed.E, classes), groups, seed)  # [classes, E]
    training, testing = (_deal(rows, groups, shares, rng) for rows in (fed.training, fed.testing))
    return replace(fed, name=f"{fed.name}+dirichlet", training=training, testing=testing)


SHIFTS: dict[str, Callable[..., Federation]] = {
    "label-noise": label_noise,
    "free-riders": free_riders,
    "feature-noise": feature_noise,
    "unequal": unequal,
    "tiny": tiny,
    "duplicates": duplicates,
    "dirichlet": dirichlet,
}


def _some(shares: Any, groups: Tensor, seed: int) -> Any:
    """Where all shares of a class within a cluster are 0, as small alphas make them, one member gets it all."""
    rng = np.random.default_rng([seed, 14])  # of its own: where nothing is 0, nothing else changes
    for g in groups.unique().tolist():
        members = (groups == g).nonzero().flatten().numpy()
        for c in (shares[:, members].sum(1) == 0).nonzero()[0]:
            shares[c, rng.choice(members)] = 1
    return shares


def _deal(rows: Rows, groups: Tensor, shares: Any, rng: np.random.Generator) -> Rows:
    """Deal each cluster's examples to its members; everyone gets at least one."""
    hands: list[list[Tensor]] = [[] for _ in groups]
    for g in groups.unique().tolist():
        members = (groups == g).nonzero().flatten().tolist()
        own = torch.cat([torch.arange(int(rows.at[e]), int(rows.at[e + 1])) for e in members])
        spare = own[torch.from_numpy(rng.permutation(len(own)))]
        for e, row in zip(members, spare, strict=False):  # one each to begin with
            hands[e].append(row[None])
        rest = spare[len(members) :]
        for c, share in enumerate(shares[:, members]):
            chosen = rest[rows.y[rest] == c]
            cuts = (np.cumsum(share / share.sum())[:-1] * len(chosen)).round().astype(int)
            for e, part in zip(members, chosen.tensor_split(torch.from_numpy(cuts)), strict=True):
                hands[e].append(part)
    order = [torch.cat(hand) for hand in hands]
    return Rows.join([Data(rows.x[index], rows.y[index]) for index in order])


def _few(
    fed: Federation,
    agents: Sequence[int],
    n: int,
    seed: int,
    name: str,
    repeat: Callable[[Tensor, int], Tensor],
) -> Federation:
    """Some agents with the rows that `repeat` makes of n drawn ones and of how many there were."""
    _known(fed, agents)
    whole("shift.n", n, 1)
    _seed(seed)
    parts = []
    for e in range(fed.E):
        data = fed.train(e)
        if e in agents:
            drawn = np.random.default_rng([seed, 13, e]).permutation(len(data.y))[:n]
            rows = repeat(torch.from_numpy(np.sort(drawn)), len(data.y))
            data = Data(data.x[rows], data.y[rows])
        parts.append(data)
    return replace(fed, name=f"{fed.name}+{name}", training=Rows.join(parts))


def _seed(seed: int) -> None:
    require("shift.seed", seed, seed >= 0, "0 or more")


def _known(fed: Federation, agents: Sequence[int]) -> None:
    for e in agents:
        require("shift.agents", e, 0 <= e < fed.E, f"agents from 0 to {fed.E - 1}")


def _worse(
    fed: Federation,
    agents: Sequence[int],
    change: Callable[[Data, np.random.Generator], Data],
    seed: int,
    name: str,
) -> Federation:
    """Change some agents' training and test data, and give them clusters of their own."""
    _known(fed, agents)
    _seed(seed)

    def changed(rows: Rows, split: int) -> Rows:
        rng = [np.random.default_rng([seed, 10, split, e]) for e in range(fed.E)]
        return Rows.join([change(rows.of(e), rng[e]) if e in set(agents) else rows.of(e) for e in range(fed.E)])

    clusters = fed.clusters
    if clusters is not None:
        apart = clusters.clone()
        apart[list(agents)] += int(clusters.max()) + 1
        clusters = torch.unique(apart, return_inverse=True)[1]
    training, testing = changed(fed.training, 0), changed(fed.testing, 1)
    name = f"{fed.name}+{name}"
    return replace(fed, name=name, training=training, testing=testing, clusters=clusters, bayes=None)


def _classes(fed: Federation) -> int:
    if fed.classes is None:
        raise InputError(f"{fed.name} has no classes: this shift is for classification")
    return fed.classes
