"""The serial engine: one agent after the other, one model after the other. It runs any network."""

from __future__ import annotations

from typing import ClassVar

import torch

from focusfl.core import Algorithm, State
from focusfl.core.tree import RunningSum, put, take, tree_map
from focusfl.engines import plan
from focusfl.engines.base import Engine, Part, Replies, Scores
from focusfl.engines.one_agent import LocalAgent, predictor


class Serial(Engine):
    """Runs one agent at a time, and skips the models that `only` rules out."""

    name: ClassVar[str] = "serial"

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Replies:
        total, rows = RunningSum(), []
        lr = self.lr_at(t)
        held_out = self.fed.validation
        for e in cohort.tolist():
            validation = None if held_out is None else held_out.of(e)
            agent = LocalAgent(self.task, self.fed.training.of(e), self.train, lr, self.seed, t, e, validation)
            view = algorithm.downlink(server, torch.tensor(e))
            state, upload = algorithm.local(view, take(states, e), agent)
            put(states, e, state)
            total.add(upload.add)
            rows.append(upload.each)
            del upload, state  # the next agent needs the memory
        each = tree_map(lambda *vs: torch.stack(vs), *rows)
        return Replies(total.result(), each, cohort)

    @torch.no_grad()
    def evaluate(self, algorithm: Algorithm, server: State, states: State, part: Part = "test") -> Scores:
        rows, scored = self.examples(part), []
        for e in rows.sizes.nonzero().flatten().tolist():
            view, (x, y) = algorithm.downlink(server, torch.tensor(e)), rows.of(e)
            p = algorithm.predict(view, take(states, e), predictor(self.task, x))
            scored.append((*self.task.score(p, y), p))
        return self.collect(scored, part)
