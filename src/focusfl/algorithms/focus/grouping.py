"""Grouping agents by how each would change a shared model.

Similar agents change a shared model in similar ways. So k-means on sketches of their updates finds the groups,
and the silhouette shows how many there are. An agent alone in its group has no neighbours: its distance to them
counts as the mean of the other agents' distances to theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Models, double, vector

SKETCH_SIZE = 256
MAX_RELATIVE_LENGTH = 2.0  # no sketch counts as longer than this times the median, so no agent decides alone
REFERENCE_DRAWS = 16  # draws without groups that real groups are compared with ...
SILHOUETTE_MARGIN = 0.05  # ... and by how much their silhouette must exceed the mean of the draws
MAX_SAMPLE = 200  # agents that the number of groups is found with


def sketch(update: Models) -> Tensor:
    """Return a random projection (count sketch) of a stack of one, [SKETCH_SIZE]. It keeps lengths and angles."""
    u = vector(update)[0]
    if len(u) <= SKETCH_SIZE:
        return torch.nn.functional.pad(u, (0, SKETCH_SIZE - len(u)))
    rng = np.random.default_rng(0)  # the same for every agent
    place = torch.from_numpy(rng.integers(0, SKETCH_SIZE, len(u))).to(u.device)
    sign = torch.from_numpy(rng.choice(np.array([-1.0, 1.0], dtype=np.float32), len(u))).to(u)
    return torch.zeros(SKETCH_SIZE, device=u.device, dtype=u.dtype).index_add(0, place, sign * u)


def clip_lengths(sketches: Tensor) -> Tensor:
    """Return the sketches, [C, SKETCH_SIZE], none longer than MAX_RELATIVE_LENGTH times the median."""
    length = torch.linalg.vector_norm(sketches, dim=1, keepdim=True)
    factor: Tensor = (MAX_RELATIVE_LENGTH * length.median() / length.clamp_min(1e-30)).clamp(max=1)
    return sketches * factor


def sample(sketches: Tensor) -> Tensor:
    """Return at most MAX_SAMPLE of the sketches, evenly spaced."""
    return sketches[:: -(-len(sketches) // MAX_SAMPLE)]


def k_means(sketches: Tensor, M: int) -> Tensor:
    """Group the sketches by k-means.

    Args:
        sketches: [C, SKETCH_SIZE].
        M: The number of groups; there are fewer if there are fewer sketches.

    Returns:
        The group of each sketch, [C]; group 0 is the largest.
    """
    from sklearn.cluster import KMeans  # takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    points = double(sketches).cpu().numpy()
    order = np.lexsort(points.T)  # k-means draws by position: the agents' order must not matter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different points than groups
        group = KMeans(min(M, len(points)), n_init=10, random_state=0).fit(points[order]).labels_
    _, first, group, size = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
    rank = np.lexsort((first, -size)).argsort()
    return torch.from_numpy(rank[group][order.argsort()]).to(sketches.device)


def find_groups(sketches: Tensor, max_groups: int) -> Tensor:
    """Group the sketches by k-means with the number of groups that has the best silhouette.

    Groups can look clear by chance, the more so the fewer the dimensions. So they must be clearer than groups of
    points without structure: draws from one normal distribution with the same width in every direction.

    Args:
        sketches: [C, SKETCH_SIZE].
        max_groups: The largest number of groups; there are at most half as many groups as agents.

    Returns:
        The group of each sketch, [C]; all are in group 0 if there are no clear groups.
    """
    some = sample(sketches)
    found, M = best_silhouette(some, max_groups)
    if M > 1:
        by_chance = sum(best_silhouette(points, max_groups)[0] for points in reference_points(some))
        if found >= SILHOUETTE_MARGIN + by_chance / REFERENCE_DRAWS:
            return k_means(sketches, M)
    return torch.zeros(len(sketches), dtype=torch.long, device=sketches.device)


def best_silhouette(points: Tensor, max_groups: int) -> tuple[float, int]:
    """Return the best silhouette and its number of groups; (0, 1) for fewer than four points."""
    numbers = range(2, min(max_groups, len(points) // 2) + 1)
    return max(((silhouette(points, k_means(points, M)), M) for M in numbers), default=(0.0, 1))


def reference_points(points: Tensor) -> Iterator[Tensor]:
    """Yield draws from the normal distribution with the points' covariance, in its principal axes."""
    x, rng = double(points).cpu(), np.random.default_rng(0)
    width = torch.linalg.svdvals(x - x.mean(0)) / max(len(x) - 1, 1) ** 0.5
    for _ in range(REFERENCE_DRAWS):
        yield torch.from_numpy(rng.standard_normal((len(x), len(width)))) * width


def silhouette(points: Tensor, group: Tensor) -> float:
    """Return the mean of (b - a) / max(a, b), which is 1 for perfectly clear groups.

    Here a is a point's mean distance to its own group, and b to the nearest other group.

    Args:
        points: [C, D].
        group: The group of each point, [C].
    """
    x = double(points)
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    member = torch.nn.functional.one_hot(group.unique(return_inverse=True)[1]).to(distance)  # [C, M]
    total, size = distance @ member, member.sum(0)
    if member.shape[1] < 2 or not (size > 1).any():
        return 0.0
    own_group = member > 0
    own_total, neighbours = total[own_group], (member @ size) - 1
    a = own_total / neighbours.clamp_min(1)
    a = torch.where(neighbours > 0, a, a[neighbours > 0].mean())  # agents alone in their group
    b = (total / size).masked_fill(own_group, torch.inf).min(1).values
    return float(((b - a) / torch.maximum(a, b).clamp_min(1e-30)).mean())
