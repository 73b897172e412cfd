"""Serial: agent after agent, model after model. Any network; it skips what `only` rules out."""

from __future__ import annotations

from typing import ClassVar

import torch

from focusfl.core import Algorithm, State
from focusfl.core.tree import Total, put, take, tree_map
from focusfl.engines import plan
from focusfl.engines.base import Engine, Replies, Scores
from focusfl.engines.one_agent import LocalAgent, score


class Serial(Engine):
    """One agent at a time."""

    name: ClassVar[str] = "serial"

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Replies:
        total, rows = Total(), []
        lr = self.train.lr_at(t, self.rounds)
        for e in cohort.tolist():
            agent = LocalAgent(self.task, self.fed.train(e), self.train, lr, self.seed, t, e)
            view = algorithm.downlink(server, torch.tensor(e))
            state, upload = algorithm.local(view, take(states, e), agent)
            put(states, e, state)
            total.add(upload.add)
            rows.append(upload.each)
            del upload, state  # summed as they come: the next agent's need the memory
        each = tree_map(lambda *vs: torch.stack(vs), *rows)
        return Replies(total.result(), each, cohort)

    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        scores = []
        for e in range(self.fed.E):
            view = algorithm.downlink(server, torch.tensor(e))
            scores.append(score(algorithm, view, take(states, e), self.task, self.fed.test(e)))
        loss, correct = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return Scores.of_examples(loss, correct, self.fed.testing.offsets, self.task.classes)
