"""Shifts: functions from a federation to a federation that make some agents differ. They can be combined.

A shift that changes the distribution of an agent's data changes its test data as well, and moves the agent from
its true cluster to a new one, which it shares with the agents of the same cluster that were changed with it. A
shift that only removes or repeats training examples leaves test data and clusters as they are.
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
from focusfl.util.errors import InputError, require, require_integer


def label_noise(fed: Federation, agents: Sequence[int], p: float, seed: int = 0) -> Federation:
    """Replace each label of some agents, with probability p, by one of the other classes.

    Args:
        fed: A federation with classes.
        agents: The agents to change, counted from 0.
        p: The probability, from 0 to 1.
        seed: Decides which labels change.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range, or the federation is for regression.

    Example:
        >>> from focusfl.data import rotated_digits
        >>> label_noise(rotated_digits(), agents=[0], p=0.3).name
        'rotated-digits+label-noise'
    """
    require("shift.p", p, lambda v: 0 <= v <= 1, "from 0 to 1")

    def noisy(data: Data, rng: np.random.Generator) -> Data:
        classes = _require_classes(fed)
        hit = torch.from_numpy(rng.random(len(data.y)) < p)
        other = torch.from_numpy(rng.integers(1, classes, len(data.y)))
        return Data(data.x, torch.where(hit, (data.y + other) % classes, data.y))

    return _change_agents(fed, agents, noisy, seed, "label-noise")


def free_riders(fed: Federation, agents: Sequence[int], seed: int = 0) -> Federation:
    """Replace all labels of some agents by random ones: nothing can be learnt from these agents.

    Args:
        fed: A federation with classes.
        agents: The agents to change, counted from 0.
        seed: Decides the labels.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range, or the federation is for regression.

    Example:
        >>> from focusfl.data import rotated_digits
        >>> free_riders(rotated_digits(), agents=[0, 1]).clusters.tolist()
        [3, 3, 0, 0, 0, 0, 0, 1, 1, 2]
    """

    def random_labels(data: Data, rng: np.random.Generator) -> Data:
        return Data(data.x, torch.from_numpy(rng.integers(0, _require_classes(fed), len(data.y))))

    return _change_agents(fed, agents, random_labels, seed, "free-riders")


def feature_noise(fed: Federation, agents: Sequence[int], sigma: float, seed: int = 0) -> Federation:
    """Add normal noise N(0, sigma^2) to every feature of some agents.

    Args:
        fed: A federation whose features are real numbers.
        agents: The agents to change, counted from 0.
        sigma: The standard deviation of the noise.
        seed: Decides the noise.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range, or the features are token ids.

    Example:
        >>> from focusfl.data import rotated_digits
        >>> feature_noise(rotated_digits(), agents=[9], sigma=0.5).name
        'rotated-digits+feature-noise'
    """
    require("shift.sigma", sigma, lambda v: v >= 0, "0 or more")
    if not fed.training.x.is_floating_point():
        raise InputError(f"feature-noise: the features of {fed.name} are token ids; noise needs real numbers")

    def blurred(data: Data, rng: np.random.Generator) -> Data:
        noise = rng.normal(0, sigma, tuple(data.x.shape)).astype("float32")
        return Data(data.x + torch.from_numpy(noise), data.y)

    return _change_agents(fed, agents, blurred, seed, "feature-noise")


def unequal(fed: Federation, ratio: float, seed: int = 0) -> Federation:
    """Give agents unequal numbers of training examples.

    Agents keep shares of their training data from 1 down to 1 / ratio, evenly spaced on a log scale, in random
    order. Test data stay as they are.

    Args:
        fed: Any federation.
        ratio: The largest share divided by the smallest, 1 or more.
        seed: Decides which agent gets which share, and which examples are kept.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> from focusfl.data import synthetic
        >>> sizes = unequal(synthetic(), ratio=10).training.sizes
        >>> sizes.min().item(), sizes.max().item()
        (10, 100)
    """
    require("shift.ratio", ratio, lambda v: v >= 1, "1 or more")
    _check_seed(seed)
    rng = np.random.default_rng([seed, 11])
    shares = rng.permutation(np.geomspace(1, 1 / ratio, fed.E))
    parts = []
    for e, share in enumerate(shares):
        data = fed.training.of(e)
        kept = max(round(len(data.y) * share), 1)
        rows = torch.from_numpy(np.sort(rng.permutation(len(data.y))[:kept]))
        parts.append(Data(data.x[rows], data.y[rows]))
    return replace(fed, name=f"{fed.name}+unequal", training=Rows.join(parts))


def tiny(fed: Federation, agents: Sequence[int], n: int = 5, seed: int = 0) -> Federation:
    """Leave some agents only n training examples, drawn at random; their test data stay as they are.

    Args:
        fed: Any federation.
        agents: The agents to change, counted from 0.
        n: How many examples they keep.
        seed: Decides which examples are kept.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> from focusfl.data import synthetic
        >>> tiny(synthetic(E=3), agents=[1]).training.sizes.tolist()
        [100, 5, 100]
    """
    return _keep_few(fed, agents, n, seed, "tiny", lambda rows, size: rows)


def duplicates(fed: Federation, agents: Sequence[int], n: int = 5, seed: int = 0) -> Federation:
    """Give some agents n training examples, repeated up to the number that they had; test data stay as they are.

    Args:
        fed: Any federation.
        agents: The agents to change, counted from 0.
        n: How many different examples they keep.
        seed: Decides which examples are kept.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> from focusfl.data import synthetic
        >>> few = duplicates(synthetic(E=3), agents=[1])
        >>> few.training.sizes.tolist(), len(few.train(1).x.unique(dim=0))
        ([100, 100, 100], 5)
    """
    return _keep_few(fed, agents, n, seed, "duplicates", lambda rows, size: rows[torch.arange(size) % len(rows)])


def dirichlet(fed: Federation, alpha: float, seed: int = 0) -> Federation:
    """Skew the labels: redistribute the examples of each class with Dirichlet(alpha) shares (Hsu et al. 2019).

    Examples stay within their true cluster. Training and test data follow the same shares.

    Args:
        fed: A federation with classes.
        alpha: The concentration, above 0. With a small alpha, an agent sees few classes.
        seed: Decides the shares, and who gets which example.

    Returns:
        The changed federation.

    Raises:
        InputError: An option is out of range, or the federation is for regression.

    Example:
        >>> from focusfl.data import rotated_digits
        >>> dirichlet(rotated_digits(), alpha=0.1).name
        'rotated-digits+dirichlet'
    """
    require("shift.alpha", alpha, lambda v: v > 0, "a positive number")
    _check_seed(seed)
    classes = _require_classes(fed)
    rng = np.random.default_rng([seed, 12])
    groups = torch.zeros(fed.E, dtype=torch.long) if fed.clusters is None else fed.clusters
    shares = _fill_empty_classes(rng.dirichlet([alpha] * fed.E, classes), groups, seed)  # [classes, E]
    training, testing = (_deal_examples(rows, groups, shares, rng) for rows in (fed.training, fed.testing))
    validation = None if fed.validation is None else _deal_examples(fed.validation, groups, shares, rng)
    return replace(fed, name=f"{fed.name}+dirichlet", training=training, testing=testing, validation=validation)


SHIFTS: dict[str, Callable[..., Federation]] = {
    "label-noise": label_noise,
    "free-riders": free_riders,
    "feature-noise": feature_noise,
    "unequal": unequal,
    "tiny": tiny,
    "duplicates": duplicates,
    "dirichlet": dirichlet,
}


def _fill_empty_classes(shares: Any, groups: Tensor, seed: int) -> Any:
    """Give one member all of a class whose shares within a cluster are all 0, as happens with a small alpha."""
    rng = np.random.default_rng([seed, 14])  # a stream of its own: where nothing is 0, no other draw changes
    for g in groups.unique().tolist():
        members = (groups == g).nonzero().flatten().numpy()
        for c in (shares[:, members].sum(1) == 0).nonzero()[0]:
            shares[c, rng.choice(members)] = 1
    return shares


def _deal_examples(rows: Rows, groups: Tensor, shares: Any, rng: np.random.Generator) -> Rows:
    """Deal each cluster's examples to its members by their shares; every agent gets at least one."""
    dealt: list[list[Tensor]] = [[] for _ in groups]  # [E] rows of each agent
    for g in groups.unique().tolist():
        members = (groups == g).nonzero().flatten().tolist()
        available = torch.cat([torch.arange(int(rows.offsets[e]), int(rows.offsets[e + 1])) for e in members])
        shuffled = available[torch.from_numpy(rng.permutation(len(available)))]
        for e, row in zip(members, shuffled, strict=False):  # one example each to begin with
            dealt[e].append(row[None])
        rest = shuffled[len(members) :]
        for c, share in enumerate(shares[:, members]):
            chosen = rest[rows.y[rest] == c]
            cuts = (np.cumsum(share / share.sum())[:-1] * len(chosen)).round().astype(int)
            for e, part in zip(members, chosen.tensor_split(torch.from_numpy(cuts)), strict=True):
                dealt[e].append(part)
    order = [torch.cat(parts) for parts in dealt]
    return Rows.join([Data(rows.x[index], rows.y[index]) for index in order])


def _keep_few(
    fed: Federation,
    agents: Sequence[int],
    n: int,
    seed: int,
    name: str,
    repeat: Callable[[Tensor, int], Tensor],
) -> Federation:
    """Draw n training rows of some agents and give them repeat(rows, number of rows before)."""
    _check_agents(fed, agents)
    require_integer("shift.n", n, 1)
    _check_seed(seed)
    parts = []
    for e in range(fed.E):
        data = fed.training.of(e)
        if e in agents:
            drawn = np.random.default_rng([seed, 13, e]).permutation(len(data.y))[:n]
            rows = repeat(torch.from_numpy(np.sort(drawn)), len(data.y))
            data = Data(data.x[rows], data.y[rows])
        parts.append(data)
    return replace(fed, name=f"{fed.name}+{name}", training=Rows.join(parts))


def _check_seed(seed: int) -> None:
    require("shift.seed", seed, lambda v: v >= 0, "0 or more")


def _check_agents(fed: Federation, agents: Sequence[int]) -> None:
    for e in agents:
        require("shift.agents", e, lambda v: 0 <= v < fed.E, f"agents from 0 to {fed.E - 1}")


def _change_agents(
    fed: Federation,
    agents: Sequence[int],
    change: Callable[[Data, np.random.Generator], Data],
    seed: int,
    name: str,
) -> Federation:
    """Change some agents' training and test data, and move them to new clusters."""
    _check_agents(fed, agents)
    _check_seed(seed)

    def changed(rows: Rows, split: int) -> Rows:
        rng = [np.random.default_rng([seed, 10, split, e]) for e in range(fed.E)]
        return Rows.join([change(rows.of(e), rng[e]) if e in set(agents) else rows.of(e) for e in range(fed.E)])

    clusters = fed.clusters
    if clusters is not None:
        apart = clusters.clone()
        apart[list(agents)] += int(clusters.max()) + 1
        clusters = torch.unique(apart, return_inverse=True)[1]
    training, testing = changed(fed.training, 0), changed(fed.testing, 1)
    validation = None if fed.validation is None else changed(fed.validation, 2)
    new = replace(fed, training=training, testing=testing, validation=validation)
    return replace(new, name=f"{fed.name}+{name}", clusters=clusters, bayes=None)


def _require_classes(fed: Federation) -> int:
    if fed.classes is None or fed.multi_label:
        raise InputError(f"{fed.name} has no classes: this shift needs a data set for classification")
    return fed.classes
