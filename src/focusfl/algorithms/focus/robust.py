"""FOCUS among agents whose uploads are wrong: its option `robust`.

"clip"  every agent shortens its update of a cluster's model to twice the median length of the last round; the
        first round only measures. The lengths go to the server as a histogram, so it still sees sums alone.
        This holds back an agent whose training goes wrong, not one that does not run this code.
"trim"  the server sees each agent's models, and takes the mean of the middle, number by number.

server  clip: {"bound": [M]}
upload  clip: add {"lengths": [M, 128]};  trim: each {"theta": [M, ...], "share": [M]}, and no theta in add
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.core import Models, double, one_hot

WIDE = 2.0  # times the median length
CUT = 0.35  # of the weight at both ends: the worst three of ten agents do not count
BINS, FINE, LEAST = 128, 2, -40  # of the histogram: lengths from 2^-40 to 2^24, two bins for each doubling


def shortened(w: Models, theta: Models, bound: Tensor, learnt: tuple[str, ...]) -> tuple[Models, Tensor]:
    """theta with updates no longer than bound_m, and how long they were, [M]; one that is not finite is none."""
    sound = finite(theta)
    theta = {k: torch.where(_along(sound, v), v, w[k]) for k, v in theta.items()}
    update = {k: theta[k] - w[k] for k in learnt}
    length = sum((u.square().reshape(len(u), -1).sum(1) for u in update.values()), torch.zeros_like(bound)).sqrt()
    length = torch.where(sound, length, torch.inf)
    by = (bound / length.clamp_min(1e-30)).clamp(max=1)
    short = {k: w[k] + u * _along(by, u) for k, u in update.items()}
    return theta | short, length


def histogram(length: Tensor, pi: Tensor) -> Tensor:
    """[M] -> [M, BINS]: pi_m in the bin of length_m."""
    at = (FINE * (length.clamp_min(1e-30).log2() - LEAST)).floor().clamp(0, BINS - 1).long()
    return one_hot(at, BINS) * pi.unsqueeze(1)


def bounds(before: Tensor, lengths: Tensor, live: Tensor) -> Tensor:
    """[M]: WIDE times the median of the lengths, the upper end of its bin. A cluster nobody held keeps its bound;
    clusters that are not in use have the widest of the others, for when they come into use."""
    total = lengths.sum(1)
    middle = (lengths.cumsum(1) >= total.unsqueeze(1) / 2).long().argmax(1)
    found = WIDE * 2.0 ** ((middle + 1) / FINE + LEAST)
    found = torch.where(total > 1e-20, found.to(before), before[live])
    return torch.full_like(before, float(found.max())).index_copy(0, live, found)


def trimmed(w: Models, theta: Models, share: Tensor) -> Models:
    """Of C agents' models, [C, M, ...], with weights [C, M]: the mean without CUT of the weight at both ends, each
    number for itself; w_m where nobody holds model m. Models that are not finite do not count."""
    sound = finite(theta, 2)
    theta = {k: torch.where(_along(sound, v), v, w[k]) for k, v in theta.items()}
    share = share * sound
    return {k: torch.stack([_middle(v, theta[k][:, m], share[:, m]) for m, v in enumerate(w[k])]) for k in w}


def finite(theta: Models, dims: int = 1) -> Tensor:
    """Of each model, [M] or [C, M]: are all its numbers?"""
    each = [v.isfinite().reshape(*v.shape[:dims], -1).all(-1) for v in theta.values()]
    return torch.stack(each).all(0)


def _along(by: Tensor, v: Tensor) -> Tensor:
    return by.reshape(by.shape + (1,) * (v.dim() - by.dim()))


def _middle(keep: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    total = double(weight).sum()
    if total <= 1e-20:
        return keep
    values, order = values.sort(0)
    weight = double(weight)[order]
    upto, low, high = weight.cumsum(0), CUT * total, (1 - CUT) * total
    counts = upto.clamp(low, high) - (upto - weight).clamp(low, high)
    return ((counts * values).sum(0) / (high - low)).to(keep.dtype)
