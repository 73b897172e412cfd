"""Setup: one run, checked and ready: a method, a federation, a model and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from focusfl.core import Algorithm, State
from focusfl.core.tree import repeat, tree_map
from focusfl.data.federation import Federation
from focusfl.engines import Engine, choose
from focusfl.engines.one_agent import predictor
from focusfl.models.task import InitialWeights, Task
from focusfl.run import identity
from focusfl.run.presence import Presence
from focusfl.run.settings import Settings
from focusfl.util import device
from focusfl.util.errors import InputError

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Setup:
    """Everything that decides the numbers of a run."""

    algorithm: Algorithm
    fed: Federation
    model: Model
    settings: Settings  # with rounds and options of local training

    @staticmethod
    def of(
        algorithm: Algorithm,
        fed: Federation,
        rounds: int | None = None,
        model: Model | None = None,
        *,
        settings: Settings | None = None,
        **options: Any,
    ) -> Setup:
        """A checked run; the data's own recipe fills in what is left out.

        Args:
            algorithm: The method.
            fed: The agents and their data.
            rounds: Number of rounds.
            model: A function that makes a network (called under the seed), or a network, whose weights are
                the start.
            settings: All other options at once,
            **options: or one by one: the fields of Settings.

        Raises:
            InputError: If an option, the model or the engine does not fit.
            CannotRun: If the method does not apply to this model or data.
        """
        model = model or fed.recipe.model
        if model is None:
            raise InputError(f"the data {fed.name!r} has no model of its own: pass model=, any torch.nn.Module")
        changes = options if rounds is None else {**options, "rounds": rounds}
        setup = Setup(algorithm, fed, model, (settings or Settings()).updated(**changes).for_data(fed.recipe))
        _ = setup.presence
        setup.task.check(fed.training.x)
        setup._check_batches()
        w = {k: v.unsqueeze(0) for k, v in setup.task.weights().items()}
        with torch.no_grad():
            algorithm.check(w, fed.classes, fed.E, predictor(setup.task, fed.training.x[:2]))
        _ = setup.engine  # an engine or device that cannot run this says so now
        return setup

    def changed(self, algorithm: Algorithm | None = None, fed: Federation | None = None, **options: Any) -> Setup:
        """Another run: with another method, other data or other settings."""
        settings = replace(self.settings, **options)
        return Setup(algorithm or self.algorithm, fed or self.fed, self.model, settings)

    @property
    def E(self) -> int:
        return self.fed.E

    @cached_property
    def networks(self) -> InitialWeights:
        return InitialWeights(self.model, self.settings.seed)

    @cached_property
    def task(self) -> Task:
        return Task(self.networks.network(), self.fed.classes)

    @cached_property
    def presence(self) -> Presence:
        """Which agents are there in which round."""
        return Presence.of(self.settings.joins, self.settings.leaves, self.fed.E, self.settings.T)

    @cached_property
    def bf16(self) -> bool:
        """bfloat16 is asked for, and this machine supports it."""
        return self.settings.precision == "bf16" and device.supports_bf16(self.device)

    @cached_property
    def engine(self) -> Engine:
        settings = self.settings
        kind = choose(settings.engine, self.task, self.fed, settings.local)
        self.task.bf16 = self.bf16
        self.task.network.to(self.device)
        return kind(self.task, self.fed.to(self.device), settings.local, settings.T, settings.seed)

    @cached_property
    def device(self) -> torch.device:
        return device.find_device(self.settings.device)

    def start(self) -> tuple[State, State]:
        """The server's and the agents' states before the first round."""
        server = tree_map(lambda v: v.to(self.device), self.algorithm.start(self.networks, self.fed.E))
        return server, self.enrolled(server, self.fed.E)

    def enrolled(self, server: State, count: int) -> State:
        """The first states of that many agents."""
        return repeat(tree_map(lambda v: v.to(self.device), self.algorithm.enroll(server)), count)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this run from every other (run/identity.py)."""
        return identity.fingerprint(self)

    def _check_batches(self) -> None:
        """Refuse batches of a single example where the network cannot train on one.

        At the end of an epoch such a batch joins the one before (engines/one_agent.py), but there may be none.
        """
        batch, rows = self.settings.local.batch, self.fed.training
        small = (rows.sizes == 1).nonzero().flatten().tolist()
        if (small or batch == 1) and not self.task.accepts_one_example(rows.x[:1]):
            why = f"agent {small[0]} has one training example" if small else "train.batch = 1"
            raise InputError(f"{why}, and the model's batch norm cannot train on one alone: it needs 2 or more")
