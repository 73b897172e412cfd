"""No library: the loop one writes by hand in torch, agent after agent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from peers.work import Work, network, weights
from peers.worker import Turn
from torch import Tensor, nn

PACKAGE = "torch"
Rows = slice | Tensor


def run(work: Work, turn: Turn) -> None:
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    server = network(work)
    while turn(lambda: weights(server)):
        one_round(work, server, x, y, lambda e: batches(work))


def one_round(work: Work, server: nn.Module, x: Tensor, y: Tensor, rows: Callable[[int], Iterable[Rows]]) -> None:
    """FedAvg; rows(e) says which of agent e's examples are in each of its steps."""
    total = [torch.zeros_like(p) for p in server.parameters()]
    for e in range(len(x)):
        net = copy.deepcopy(server)
        optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
        for batch in rows(e):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[e][batch]), y[e][batch]).backward()
            optimiser.step()
        for t, p in zip(total, net.parameters(), strict=True):
            t += p.detach() * (len(y[e]) / y.numel())
    with torch.no_grad():
        for p, t in zip(server.parameters(), total, strict=True):
            p.copy_(t)


def batches(work: Work) -> Iterable[Rows]:
    """Full batch, or: shuffle, cut into batches, shuffle again, ..."""
    if work.full:
        return [slice(None)] * work.steps
    n = work.x.shape[1]
    epochs = -(-work.steps * work.batch // n)
    cut = [batch for _ in range(epochs) for batch in torch.randperm(n).split(work.batch)]
    return cut[: work.steps]
