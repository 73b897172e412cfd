"""Early stopping: keep the round with the lowest mean validation loss, and stop if it does not improve.

With train.lr = "auto", training first returns to that round and goes on with half the learning rate, several times.

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
        judges: The agents whose validation losses were averaged; None: always the same ones.
    """

    round: int
    loss: float
    since: int
    server: State
    states: State
    judges: tuple[int, ...] | None = None


WAIT = 3  # evaluations without a lower loss, after which a run with lr = "auto" goes on with half the rate
LEAST_GAIN = 1e-3  # of the loss, below which such a run does not count it as lower
MAX_EXPLOSIONS = 20  # that a run with lr = "auto" takes back


class EarlyStopping:
    """Decides when to stop, and when to go on from the best round with half the learning rate.

    Args:
        patience: The number of evaluations without a lower loss after which to stop; None never stops and keeps
            nothing.
        settled: Whether the method has settled, given the server's state (`Algorithm.settled`).
        keep_together: What goes on if groups do not lower the loss (`Algorithm.keep_together`).
        best: What a run that is resumed had found.
        auto_rate: Whether the learning rate is "auto".
        rate: The factor of the learning rate so far.
    """

    def __init__(
        self,
        patience: int | None,
        settled: Callable[[State], bool],
        keep_together: Callable[[State], State | None] = lambda server: None,
        best: Best | None = None,
        auto_rate: bool = False,
        rate: float = 1.0,
    ) -> None:
        self.patience, self.settled, self.keep_together, self.best = patience, settled, keep_together, best
        self.auto_rate, self.rate, self.explosions = auto_rate, rate, 0

    def update(
        self,
        t: int,
        loss: float | None,
        server: State,
        states: State,
        judges: tuple[int, ...] | None = None,
    ) -> None:
        """Take note of the mean validation loss after round t; None if it was not evaluated."""
        if self.patience is None or loss is None:
            return
        if self._better(loss, server):
            copy = tree_map(torch.clone, server), tree_map(torch.clone, states)  # later rounds write in place
            self.best = Best(t, loss, 0, *copy, judges)
        elif self.best is not None and self.settled(server):
            self.best = self.best._replace(since=self.best.since + 1)

    def _better(self, loss: float, server: State) -> bool:
        """Say whether this round is better than the best so far; any settled round is better than all before.

        With lr = "auto", it must be better by some margin, and groups that the method found by itself must lower
        the loss, or they are given up.
        """
        if self.best is None:
            return True
        now, then = self.settled(server), self.settled(self.best.server)
        if now != then and not (self.auto_rate and self.keep_together(self.best.server) is not None):
            return now
        return loss < self.best.loss - (LEAST_GAIN * abs(self.best.loss) if self.auto_rate else 0.0)

    def returns(self) -> Best | None:
        """Return the best round if it is time to go on from there with half the rate, else None.

        If that round is from before the method settled, the groups found since have not lowered the loss: the rate
        stays, and one model goes on for all agents.
        """
        if not self.auto_rate or self.over or self.best is None or not self.best.since or self.best.since % WAIT:
            return None
        together = None if self.settled(self.best.server) else self.keep_together(self.best.server)
        if together is None:
            self.rate /= 2
        else:
            self.best = self.best._replace(since=0, server=together)
        return self.best

    def takes_back(self) -> bool:
        """Take note that training diverged; return whether to go on, with a quarter of the rate."""
        self.explosions += 1
        self.rate /= 4
        return self.auto_rate and self.explosions <= MAX_EXPLOSIONS

    @property
    def over(self) -> bool:
        """Whether to stop now."""
        return self.patience is not None and self.best is not None and self.best.since >= self.patience
