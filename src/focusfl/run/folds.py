"""Folds of all agents' examples, and runs in which many models are trained side by side, each on some of them.

A model that belongs to a fold and to some agents is trained as an agent of its own: it holds the examples of these
agents that are not in the fold, and is evaluated on those that are, and on the agents' test examples. So any engine
trains the candidates, in one run of `Local`, with checkpoints as in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.federation import Federation, Rows

FOLDS = 3
HELD_OUT = 5  # with a single split, one of so many examples is held out, unless there are validation data
NEVER_HELD_OUT = -1

Job = tuple[int, Tensor]  # a model to train: its fold, and the agents whose examples it gets


@dataclass(frozen=True)
class Folds:
    """Which examples a model is trained on, and which it is judged on.

    Attributes:
        fed: The federation.
        rows: Training, validation and test examples of all agents, in this order.
        fold: The fold of each of `rows`, [N]: NEVER_HELD_OUT for test examples and those of tiny agents.
        agent: The agent of each of `rows`, [N].
        test: Whether each of `rows` is a test example, [N].
        count: The number of folds that are held out, K; with 1, there is no model that was trained on everything.
    """

    fed: Federation
    rows: Data
    fold: Tensor
    agent: Tensor
    test: Tensor
    count: int

    @property
    def models(self) -> int:
        """The models per set of agents: one per fold and, with several folds, one on all examples, the last."""
        return self.count + (self.count > 1)

    @property
    def held_out(self) -> Tensor:
        """Whether each of `rows` is judged by a model that was not trained on it, [N]."""
        return self.fold != NEVER_HELD_OUT

    def training(self, k: int) -> Tensor:
        """Return whether model k is trained on each of `rows`, [N]."""
        return ~self.test & (self.fold != k)

    def judged(self, k: int) -> Tensor:
        """Return whether model k is evaluated on each of `rows`, [N]."""
        return self.test | (self.fold == k)

    def federation(self, jobs: Sequence[Job]) -> tuple[Federation, list[Tensor]]:
        """Return a federation with one agent per model, and the places in `rows` of its test examples.

        Args:
            jobs: The models.
        """

        def places(which: Tensor, members: Tensor) -> Tensor:
            return (which & torch.isin(self.agent, members)).nonzero().flatten()

        training = [places(self.training(k), members) for k, members in jobs]
        judged = [places(self.judged(k), members) for k, members in jobs]
        parts = [Rows.join([Data(self.rows.x[i], self.rows.y[i]) for i in each]) for each in (training, judged)]
        fed = replace(self.fed, training=parts[0], testing=parts[1], clusters=None, bayes=None, validation=None)
        return fed, judged


def folds_of(fed: Federation, seed: int, single: bool) -> Folds:
    """Divide the training and validation examples of every agent. Agents with fewer than FOLDS are not divided.

    Args:
        fed: The federation.
        seed: Decides which example is in which fold.
        single: Hold out one part only: the validation examples if there are any.
    """
    train, test, chosen_on = fed.all_rows, fed.testing, fed.validation_rows
    fold = torch.full((len(train.y),), NEVER_HELD_OUT)
    for e, (a, b) in enumerate(zip(train.offsets[:-1].tolist(), train.offsets[1:].tolist(), strict=True)):
        if b - a < FOLDS:
            continue
        if single and fed.validation is not None:
            fold[b - int(chosen_on.sizes[e]) : b] = 0
            continue
        drawn = torch.from_numpy(np.random.default_rng([seed, e]).permutation(b - a))
        fold[a:b] = drawn % FOLDS if not single else torch.where(drawn < (b - a + 2) // HELD_OUT, 0, NEVER_HELD_OUT)
    agents = [torch.arange(fed.E).repeat_interleave(rows.sizes) for rows in (train, test)]
    is_test = torch.cat([torch.zeros(len(train.y), dtype=torch.bool), torch.ones(len(test.y), dtype=torch.bool)])
    untouched = torch.full((len(test.y),), NEVER_HELD_OUT)
    rows = Data(torch.cat([train.x, test.x]), torch.cat([train.y, test.y]))
    return Folds(fed, rows, torch.cat([fold, untouched]), torch.cat(agents), is_test, 1 if single else FOLDS)
