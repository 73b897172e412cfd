"""Ties: agents whose risks noise does not let us tell apart, and what noise does to the largest of them.

x [E] are numbers known up to normal noise of standard error s [E]. The draws of that noise come from a fixed seed
and in parts of bounded size, so that 100,000 agents need no more memory than a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

DRAWS, FEW, LEAST = 8000, 1000, 500  # how often noise is drawn: for a limit, for less, and with many agents
ROOM = 4_000_000  # numbers drawn at a time


def draws(agents: int, times: int = DRAWS, seed: int = 0) -> Iterator[Tensor]:
    """So many times a normal number an agent, [rows, agents] at a time, and its opposite, so that the mean is 0.

    For thousands of agents fewer times.
    """
    rng, rows = torch.Generator().manual_seed(seed), max(1, ROOM // agents // 2)
    pairs = min(times, max(LEAST, ROOM // agents)) // 2
    for begin in range(0, pairs, rows):
        z = torch.randn(min(rows, pairs - begin), agents, generator=rng)
        yield torch.cat([z, -z])


def noise(s: Tensor, top: Tensor, low: Tensor, times: int = DRAWS) -> Iterator[tuple[Tensor, Tensor]]:
    """Of the agents `top` and of the agents `low`; one who is among both has the same noise in both."""
    both = torch.unique(torch.cat([top, low]))
    for z in draws(len(both), times):
        z = z * s[both].float()
        yield z[:, torch.searchsorted(both, top)], z[:, torch.searchsorted(both, low)]


def steepest(s: Tensor, top: Tensor, low: Tensor, times: int = DRAWS) -> Tensor:
    """max over e in top, f in low of (z_e - z_f) / (s_e + s_f) of each draw z (by Dinkelbach's iteration). [n]"""
    a, b, found = s[top].float(), s[low].float(), []
    for up, down in noise(s, top, low, times):
        c, before = torch.zeros(len(up), 1), None
        while before is None or (c > before + 1e-5).any():
            e, f = (up - c * a).argmax(1, keepdim=True), (down + c * b).argmin(1, keepdim=True)
            before, c = c, (up.gather(1, e) - down.gather(1, f)) / (a[e] + b[f])
        found.append(c.flatten())
    return torch.cat(found)


def reach(s: Tensor, level: float) -> Tensor:
    """c: with that probability no two agents' noises are further apart than c (s_e + s_f) (Tukey's range)."""
    every = torch.arange(len(s))
    return torch.quantile(steepest(s, every, every, FEW), level)


def near(x: Tensor, s: Tensor, e: Tensor, c: Tensor) -> Tensor:
    """Who cannot be told from agent e.

    >>> from torch import tensor
    >>> near(tensor([0.0, 7.0, 9.0]), tensor([1.0, 1.0, 1.0]), tensor(2), tensor(2.0))
    tensor([1, 2])
    """
    return ((x[e] - x).abs() <= c * (s[e] + s)).nonzero().flatten()


def ends(x: Tensor, s: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Who is tied with the largest, and who with the least."""
    c = reach(s, level)
    return near(x, s, x.argmax(), c), near(x, s, x.argmin(), c)


def shrunk(x: Tensor, s: Tensor) -> Tensor:
    """x drawn to its mean as far as noise explains its spread (James and Stein).

    >>> from torch import tensor
    >>> shrunk(tensor([-2.0, 2.0]), tensor([2.0, 2.0])), shrunk(tensor([-2.0, 2.0]), tensor([4.0, 4.0]))
    (tensor([-1.,  1.]), tensor([0., 0.]))
    """
    w = 1 / s.square()
    mean = (w * x).sum() / w.sum()
    spread = (w * (x - mean).square()).sum()
    return mean + (x - mean) * (1 - (len(x) - 1) / spread.clamp_min(1e-12)).clamp_min(0)


def widest(x: Tensor, s: Tensor, z: float) -> tuple[float, float]:
    """max over pairs e != f of x_e - x_f + z sqrt(s_e^2 + s_f^2), and sqrt(s_e^2 + s_f^2) / (s_e + s_f) there.

    >>> from torch import tensor
    >>> round(widest(tensor([0.0, 5.0, -5.0]), tensor([10.0, 0.1, 0.1]), 1.96)[0], 1)  # agents 0 and 2, or 1 and 0
    24.6
    """
    top, low = outer(x, s), outer(-x, s)
    best, share = -torch.inf, 1.0
    for e in top.split(max(1, ROOM // len(low))):
        both = torch.hypot(s[e, None], s[low])
        width = (x[e, None] - x[low] + z * both).masked_fill(e[:, None] == low, -torch.inf)
        if width.max() > best:
            best, share = float(width.max()), float((both / (s[e, None] + s[low])).flatten()[width.argmax()])
    return best, share


def outer(x: Tensor, s: Tensor) -> Tensor:
    """Who may be the upper one of the widest pair: all but those that two others reach both in x and in s, for one
    of the two is not the partner, and would do as well. Few, as a rule.

    >>> from torch import tensor
    >>> outer(tensor([4.0, 3.0, 2.0, 1.0]), tensor([1.0, 1.0, 1.0, 2.0]))
    tensor([0, 3, 1])
    """
    left, found = x.argsort(descending=True, stable=True), []
    for _ in range(2):
        before = torch.cat([s.new_tensor([-torch.inf]), s[left].cummax(0).values[:-1]])
        beyond = s[left] > before
        found.append(left[beyond])
        left = left[~beyond]
    return torch.cat(found)
