"""Which agents belong together, seen from how each would change a model they share.

Agents of one kind pull a shared model the same way, so k-means on sketches of their updates finds the kinds, and
the silhouette shows how many there are. A lone agent has no neighbours: it counts as close as the others are to
theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Models, double, vector

SIZE = 256  # numbers in a sketch
MAX_LENGTH = 2.0  # times the median: no sketch counts as longer, so that no agent decides alone
CLOUDS = 16  # draws without groups that the real groups are compared with ...
MARGIN = 0.05  # ... and by how much their silhouette has to be above the draws' mean
MAX_JUDGED = 200  # agents by which the number of groups is found


def sketch(update: Models) -> Tensor:
    """A stack of one -> [SIZE]: a random projection (count sketch) of it. Lengths and angles survive."""
    u = vector(update)[0]
    if len(u) <= SIZE:
        return torch.nn.functional.pad(u, (0, SIZE - len(u)))
    rng = np.random.default_rng(0)  # the same for every agent
    place = torch.from_numpy(rng.integers(0, SIZE, len(u))).to(u.device)
    sign = torch.from_numpy(rng.choice(np.array([-1.0, 1.0], dtype=np.float32), len(u))).to(u)
    return torch.zeros(SIZE, device=u.device, dtype=u.dtype).index_add(0, place, sign * u)


def bounded(sketches: Tensor) -> Tensor:
    """[C, SIZE]: none longer than MAX_LENGTH times the median."""
    length = torch.linalg.vector_norm(sketches, dim=1, keepdim=True)
    shorter: Tensor = (MAX_LENGTH * length.median() / length.clamp_min(1e-30)).clamp(max=1)
    return sketches * shorter


def groups(sketches: Tensor, M: int) -> Tensor:
    """[C, SIZE] -> [C]: who belongs together, in M groups (fewer where sketches are fewer), the largest first."""
    from sklearn.cluster import KMeans  # takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    points = double(sketches).cpu().numpy()
    order = np.lexsort(points.T)  # k-means draws by position: the agents' order must not matter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer points that differ than groups
        found = KMeans(min(M, len(points)), n_init=10, random_state=0).fit(points[order]).labels_
    _, first, found, size = np.unique(found, return_index=True, return_inverse=True, return_counts=True)
    rank = np.lexsort((first, -size)).argsort()
    return torch.from_numpy(rank[found][order.argsort()]).to(sketches.device)


def how_many(sketches: Tensor, max_groups: int) -> Tensor:
    """[C]: the sharpest groups, of all numbers of them up to max_groups and to half of the agents; else one group.

    Some groups look sharp by chance, the more so the fewer the dimensions. So they have to be sharper than those of
    agents without groups: points of one normal cloud, as wide in every direction as these.
    """
    some = _judged(sketches)
    sharp, M = sharpest(some, max_groups)
    if M == 1 or sharp < MARGIN + sum(sharpest(one, max_groups)[0] for one in clouds(some, CLOUDS)) / CLOUDS:
        return torch.zeros(len(sketches), dtype=torch.long, device=sketches.device)
    return groups(sketches, M)


def sharpness(points: Tensor, M: int | None, max_groups: int = 0) -> float:
    """The silhouette of their M groups; None: of as many, up to max_groups, as have the best."""
    some = _judged(points)
    return sharpest(some, max_groups)[0] if M is None else silhouette(some, groups(some, M))


def sharpest(points: Tensor, max_groups: int) -> tuple[float, int]:
    """The best silhouette, and its number of groups; (0, 1) with fewer than four points."""
    numbers = range(2, min(max_groups, len(points) // 2) + 1)
    return max(((silhouette(points, groups(points, M)), M) for M in numbers), default=(0.0, 1))


def _judged(points: Tensor) -> Tensor:
    """MAX_JUDGED of them at most."""
    return points[:: -(-len(points) // MAX_JUDGED)]


def clouds(points: Tensor, count: int) -> Iterator[Tensor]:
    """`count` draws from the normal distribution with the points' covariance, in its principal axes."""
    x, rng = double(points).cpu(), np.random.default_rng(0)
    width = torch.linalg.svdvals(x - x.mean(0)) / max(len(x) - 1, 1) ** 0.5
    for _ in range(count):
        yield torch.from_numpy(rng.standard_normal((len(x), len(width)))) * width


def silhouette(points: Tensor, group: Tensor) -> float:
    """The mean of (b - a) / max(a, b): a the mean distance to the own group, b to the nearest other. 1 is sharp."""
    x = double(points)
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    member = torch.nn.functional.one_hot(group.unique(return_inverse=True)[1]).to(apart)  # [C, M]
    total, size = apart @ member, member.sum(0)
    if member.shape[1] < 2 or not (size > 1).any():
        return 0.0
    mine = member > 0
    own, mates = total[mine], (member @ size) - 1
    a = own / mates.clamp_min(1)
    a = torch.where(mates > 0, a, a[mates > 0].mean())  # the lone ones
    b = (total / size).masked_fill(mine, torch.inf).min(1).values
    return float(((b - a) / torch.maximum(a, b).clamp_min(1e-30)).mean())
