"""Early stopping: keep the round with the lowest mean validation loss, and stop if it does not improve.

Rounds before a method has settled do not count: FOCUS trains one model for all agents at first, and that model may
get worse for them before it is split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from focusfl.core import State
from focusfl.core.tree import tree_map


class Best(NamedTuple):
    """The best round so far.

    Attributes:
        round: From 1.
        loss: Its mean validation loss.
        since: The number of evaluations after it; none if the method had not settled.
        server: The server's state after it.
        states: The agents' states after it.
    """

    round: int
    loss: float
    since: int
    server: State
    states: State


class EarlyStopping:
    """Decides when to stop.

    Args:
        patience: The number of evaluations without a lower loss after which to stop; None never stops and keeps
            nothing.
        settled: Whether the method has settled, given the server's state (`Algorithm.settled`).
        best: What a run that is resumed had found.
    """

    def __init__(self, patience: int | None, settled: Callable[[State], bool], best: Best | None = None) -> None:
        self.patience, self.settled, self.best = patience, settled, best

    def update(self, t: int, loss: float | None, server: State, states: State) -> None:
        """Take note of the mean validation loss after round t; None if it was not evaluated."""
        if self.patience is None or loss is None:
            return
        if self._better(loss, server):
            copies = (tree_map(torch.clone, tree) for tree in (server, states))  # later rounds write in place
            self.best = Best(t, loss, 0, *copies)
        elif self.best is not None and self.settled(server):
            self.best = self.best._replace(since=self.best.since + 1)

    def _better(self, loss: float, server: State) -> bool:
        """Say whether this round is better than the best so far; any settled round is better than all before."""
        if self.best is None:
            return True
        now, then = self.settled(server), self.settled(self.best.server)
        return loss < self.best.loss if now == then else now

    @property
    def over(self) -> bool:
        """Whether to stop now."""
        return self.patience is not None and self.best is not None and self.best.since >= self.patience
