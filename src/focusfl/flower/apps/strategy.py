"""Strategy: focusfl's methods inside a ServerApp of your own, with Flower's loop. The nodes run `client_app`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as Base

from focusfl.core import State
from focusfl.engines import plan
from focusfl.flower.apps.run import Run
from focusfl.flower.apps.server import SAY, exchange
from focusfl.flower.protocol.wire import to_arrays
from focusfl.util.errors import InputError


class Strategy(Base):
    """`strategy.start(grid, strategy.initial_arrays(), num_rounds=run.rounds)` trains; `server` is the outcome.

    Flower's loop begins at round 1 whatever was done before: to resume a run use `server_app`.
    """

    def __init__(self, run: Run) -> None:
        if run.secure or run.resume or run.out is not None:
            raise InputError("secure, resume and out are done by server_app; a Strategy has Flower's own loop")
        self.run = run
        self.server: State = run.algorithm.start(run.networks, run.agents)
        self.dropped: dict[int, dict[int, str]] = {}  # round: agent: why its upload was left out
        self._asked: dict[int, Message] = {}

    def initial_arrays(self) -> ArrayRecord:
        """The server's first state; Flower hands it on from round to round."""
        return to_arrays(self.server)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        t, run = server_round - 1, self.run
        if t == 0:
            self._talk = exchange(grid, run, SAY.warning)
        first = run.algorithm.enroll(self.server)
        self._talk.roll.gather(t, first, begin=t == 0, wait=run.wait if t == 0 else 0.0)
        self._cohort = plan.cohort(run.seed, t, run.agents, run.fraction)
        self._asked = self._talk.ask("train", self.server, t, self._cohort)
        return list(self._asked.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        t = server_round - 1
        answers = self._talk.summed(self.server, t, self._cohort, self._asked, replies)
        self.dropped[server_round] = dict(answers.dropped)
        self.server = self.run.aggregated(self.server, answers, t)
        return to_arrays(self.server), MetricRecord({"agents": len(answers.cohort)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round % self.run.eval_every and server_round != self.run.rounds:
            self._asked = {}
        else:
            self._asked = self._talk.ask("evaluate", self.server, self.run.rounds, np.arange(self.run.agents))
        return list(self._asked.values())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if not self._asked:
            return None
        scores, _, _ = self._talk.scores(self.server, self._asked, replies)
        found: dict[str, Any] = {"loss": scores.loss.nanmean().item(), "losses": scores.loss.tolist()}
        if scores.acc is not None:
            found |= {"acc": scores.acc.nanmean().item(), "accs": scores.acc.tolist()}
        return MetricRecord(found)

    def summary(self) -> None:
        SAY.info("%r, %d agents", self.run.algorithm, self.run.agents)
