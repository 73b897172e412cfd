"""Setup: one run that has been checked: a method, a federation, a model and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import Any

import torch
from torch import nn

from focusfl.algorithms import Adapted, adapted, with_common_weights
from focusfl.core import Algorithm, State
from focusfl.core.tree import repeat, tree_map
from focusfl.data.federation import Federation
from focusfl.data.own.inputs import Inputs
from focusfl.data.own.moments import Moments, target_scale
from focusfl.engines import Engine, choose
from focusfl.engines.one_agent import predictor
from focusfl.fairness import scores
from focusfl.models import losses
from focusfl.models.losses import Loss
from focusfl.models.named import named_network
from focusfl.models.task import InitialWeights, TargetScale, Task
from focusfl.run import identity
from focusfl.run.presence import Presence
from focusfl.run.settings import Settings
from focusfl.util import device
from focusfl.util.errors import InputError, require_instance

Model = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Setup:
    """Everything that determines the numbers of a run, and the task, engine and device built from it."""

    algorithm: Algorithm
    fed: Federation
    model: Model
    settings: Settings  # with rounds and options of local training
    inputs: Inputs | None = None  # the form of an example, if the run scales its features itself

    E: int = field(init=False)
    networks: InitialWeights = field(init=False, repr=False)
    task: Task = field(init=False, repr=False)
    engine: Engine = field(init=False, repr=False)
    device: torch.device = field(init=False)
    bf16: bool = field(init=False)  # bfloat16 is requested, and this machine supports it
    presence: Presence = field(init=False)  # which agents are present in which round

    @staticmethod
    def of(
        algorithm: Algorithm,
        fed: Federation,
        rounds: int | None = None,
        model: Model | str | None = None,
        *,
        settings: Settings | None = None,
        **options: Any,
    ) -> Setup:
        """Check a run and return it. The data set's recipe provides what is left out.

        Args:
            algorithm: The method.
            fed: The agents and their data.
            rounds: Number of rounds.
            model: A function that makes a network (called under the seed), a network, whose weights are the start,
                or the name of one, such as "mlp:64,32" (models.named).
            settings: All other options, as one object.
            **options: Fields of Settings; they override those in `settings`.

        Raises:
            InputError: If an option, the model or the engine does not fit.
            CannotRun: If the method does not apply to this model or data.
        """
        require_instance("algorithm", algorithm, Algorithm, "a method with its options, such as ff.Focus(M=2)")
        require_instance("fed", fed, Federation, "a federation, as ff.data and ff.Federation.from_agents make them")
        require_instance("settings", settings, (Settings, NoneType), "ff.Settings(...)")
        if isinstance(model, str) and model:
            model = named_network(model, fed.training.x.shape[1:], fed.classes or 1)
        model = model or fed.recipe.model
        if model is None:
            raise InputError(
                f"the data set {fed.name!r} has no default model: name one, with --set model=mlp:64 on the command "
                "line; in Python pass model='mlp:64' or any torch.nn.Module"
            )
        if not isinstance(model, nn.Module) and not callable(model):
            raise InputError(f"model = {model!r}: expected a torch.nn.Module, a function that makes one, or a name")
        changes = options if rounds is None else {**options, "rounds": rounds}
        given = (settings or Settings()).updated(**changes)
        if given.train is not None:
            fed = replace(fed, recipe=fed.recipe.without_aids())
        chosen = given.updated(fed.recipe)
        if not losses.resolve(chosen.loss, fed.classes, fed.multi_label).default:
            fed = replace(fed, bayes=None)  # known for the default loss only
        fed = fed.with_validation(chosen.validation, chosen.seed)
        inputs = None
        if fed.recipe.scale_features:
            fed, inputs = _with_scaled_features(fed)
        if chosen.patience is not None and fed.validation is None:
            raise InputError(
                f"patience = {chosen.patience}: needs validation data: set validation, for example 0.2"
            )
        asked = bool(getattr(algorithm, "adapt", False)) or isinstance(algorithm, Adapted)
        if asked and fed.validation is None:
            raise InputError("adapt = true: an agent decides on its validation data; set validation, such as 0.2")
        (algorithm,) = with_common_weights([algorithm], alike=fed.recipe.own)
        algorithm = adapted(algorithm, by_default=fed.recipe.adapt and fed.validation is not None)
        if chosen.metrics is None:
            chosen = replace(chosen, metrics=_usual_metrics(fed))
        setup = Setup(algorithm, fed, model, chosen, inputs)
        setup.task.check(fed.training.x)
        setup._check_batches()
        w = {k: v.unsqueeze(0) for k, v in setup.task.weights().items()}
        with torch.no_grad():
            algorithm.check(w, fed.classes, fed.E, predictor(setup.task, fed.training.x[:2]))
        return setup

    def __post_init__(self) -> None:
        """Build what the run needs. An option, engine or device that cannot be used raises an InputError here."""
        s, fed = self.settings, self.fed
        place, networks = device.find_device(s.device), InitialWeights(self.model, s.seed)
        loss = losses.resolve(s.loss, fed.classes, fed.multi_label)
        task = Task(networks.network(), fed.classes, loss, self._target_scale(loss))
        task.bf16 = s.precision == "bf16" and device.supports_bf16(place)
        presence = Presence.of(s.joins, s.leaves, fed.E, s.T)
        kind = choose(s.engine, task, fed, s.local)
        task.to(place)
        engine = kind(task, fed.to(place), s.local, s.T, s.seed)
        engine.metrics = scores.resolve(s.metrics, fed.classes)
        built = {"E": fed.E, "networks": networks, "task": task, "engine": engine, "device": place}
        for name, value in {**built, "bf16": task.bf16, "presence": presence}.items():
            object.__setattr__(self, name, value)

    def _target_scale(self, loss: Loss) -> TargetScale | None:
        """Return the mean and deviation of a regression's targets, if the data ask for scaled targets."""
        if self.fed.classes is not None or not loss.default or not self.fed.recipe.scale_target:
            return None
        rows = self.fed.all_rows
        return TargetScale(*target_scale([rows.of(e).y for e in range(self.fed.E)]))

    def changed(self, algorithm: Algorithm | None = None, fed: Federation | None = None, **options: Any) -> Setup:
        """Return the same run with another method, other data or other settings."""
        settings = replace(self.settings, **options)
        return Setup(algorithm or self.algorithm, fed or self.fed, self.model, settings, self.inputs)

    def on(self, engine: Engine) -> Setup:
        """Return the same run on another engine."""
        other = replace(self)
        object.__setattr__(other, "engine", engine)
        return other

    def start(self) -> tuple[State, State]:
        """Return the server's and the agents' states before the first round."""
        server = tree_map(lambda v: v.to(self.device), self.algorithm.start(self.networks, self.fed.E))
        return server, self.enrolled(server, self.fed.E)

    def enrolled(self, server: State, count: int) -> State:
        """Return the first states of `count` new agents."""
        return repeat(tree_map(lambda v: v.to(self.device), self.algorithm.enroll(server)), count)

    @cached_property
    def fingerprint(self) -> str:
        """A digest that identifies this run (run/identity.py)."""
        return identity.fingerprint(self)

    @property
    def validates(self) -> bool:
        """Whether there are validation data."""
        return self.fed.validation is not None

    def _check_batches(self) -> None:
        """Refuse batches of a single example if the network cannot train on one.

        At the end of an epoch such a batch is merged with the one before, if there is one (engines/one_agent.py).
        """
        batch, rows = self.settings.local.batch, self.fed.training
        small = (rows.sizes == 1).nonzero().flatten().tolist()
        if (small or batch == 1) and not self.task.accepts_one_example(rows.x[:1]):
            why = f"agent {small[0]} has one training example" if small else "train.batch = 1"
            raise InputError(f"{why}, and the model's batch norm cannot train on one alone: it needs 2 or more")


def _usual_metrics(fed: Federation) -> tuple[str, ...]:
    """Return the metrics of data for which none were asked: where loss and accuracy say little by themselves."""
    if fed.classes is None:
        return scores.IF_NUMBERS if fed.recipe.own else ()
    known = fed.all_rows
    return scores.IF_UNBALANCED if not fed.multi_label and scores.unbalanced(known.y, known.offsets) else ()


def _with_scaled_features(fed: Federation) -> tuple[Federation, Inputs]:
    """Return a federation with features of mean 0 and deviation 1 over all agents, and what new examples need."""
    known = fed.all_rows
    form = Inputs.of(fed)
    mean, deviation = Moments.of([known.of(e).x.numpy() for e in range(fed.E)]).scaling(form.shape)
    inputs = replace(form, mean=mean, deviation=deviation)
    recipe = replace(fed.recipe, scale_features=False)
    training, testing = (replace(rows, x=inputs.scaled(rows.x)) for rows in (fed.training, fed.testing))
    validation = None if fed.validation is None else replace(fed.validation, x=inputs.scaled(fed.validation.x))
    return replace(fed, training=training, testing=testing, validation=validation, recipe=recipe), inputs
