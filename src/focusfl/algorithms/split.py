"""Which agents belong together, seen from how each would change a model they share: the start of FOCUS "split".

After some rounds of one shared model every agent sends a sketch of its last update, scaled to length one. Agents
of one kind pull the shared model the same way, so k-means on the sketches finds the kinds; and how many there are
shows in the silhouette. A lone agent has no neighbours: it counts as close as the others are to theirs.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Models, double, vector

SIZE = 256  # numbers in a sketch
SHARP = 0.45  # silhouette from which groups are groups. Measured: 0.50 to 0.86 with, up to 0.41 without
MOST = 10  # groups, where nobody says how many


def sketch(update: Models) -> Tensor:
    """A stack of one -> [SIZE]: a random projection (count sketch) of it at length one. Angles survive."""
    u = vector(update)[0]
    u = u / u.norm().clamp_min(1e-30)
    if len(u) <= SIZE:
        return torch.nn.functional.pad(u, (0, SIZE - len(u)))
    rng = np.random.default_rng(0)  # the same for every agent
    place = torch.from_numpy(rng.integers(0, SIZE, len(u))).to(u.device)
    sign = torch.from_numpy(rng.choice(np.array([-1.0, 1.0], dtype=np.float32), len(u))).to(u)
    return torch.zeros(SIZE, device=u.device, dtype=u.dtype).index_add(0, place, sign * u)


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


def how_many(sketches: Tensor) -> Tensor:
    """[C]: the sharpest groups, of all numbers of them up to MOST and to half of the agents; else one."""
    tried = [groups(sketches, M) for M in range(2, min(MOST, len(sketches) // 2) + 1)]
    scores = [silhouette(sketches, found) for found in tried]
    best = max(range(len(tried)), key=scores.__getitem__, default=None)
    if best is None or scores[best] < SHARP:
        return torch.zeros(len(sketches), dtype=torch.long, device=sketches.device)
    return tried[best]


def silhouette(points: Tensor, group: Tensor) -> float:
    """The mean of (b - a) / max(a, b): a the mean distance to the own group, b to the nearest other. 1 is sharp."""
    x = double(points)
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    member = torch.nn.functional.one_hot(group).to(apart)  # [C, M]
    total, size = apart @ member, member.sum(0)
    if member.shape[1] < 2 or not (size > 1).any():
        return 0.0
    own, mates = total.gather(1, group[:, None])[:, 0], size[group] - 1
    a = own / mates.clamp_min(1)
    a = torch.where(mates > 0, a, a[mates > 0].mean())  # the lone ones
    b = (total / size).scatter(1, group[:, None], torch.inf).min(1).values
    return float(((b - a) / torch.maximum(a, b).clamp_min(1e-30)).mean())
