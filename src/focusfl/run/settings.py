"""Settings: every option of a run, defined, defaulted, checked and documented in this one place.

`fit` takes them as keywords, an experiment in TOML and a Flower app's run configuration as keys, and a node's job
carries them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal, get_args

from focusfl.core.train import Train
from focusfl.data.federation import Recipe
from focusfl.fairness import scores
from focusfl.fairness.scores import MetricOption
from focusfl.models import losses
from focusfl.models.losses import LossOption
from focusfl.util.errors import (
    InputError,
    nearest,
    require,
    require_choice,
    require_instance,
    whole_number,
)

EngineName = Literal["auto", "serial", "vectorised", "flower"]
DeviceName = Literal["cpu", "cuda", "mps", "auto"]
BestLossKind = Literal["auto", "exact", "true", "validated", "learned", "agent", "none"]


@dataclass(frozen=True)
class Settings:
    """The options of a run that do not depend on the method or the data.

    Args:
        rounds: Number of rounds T (default: the data set's recipe).
        train: Options of local training (default: the data set's recipe). If they are given, the recipe of your own
            data adds nothing to them: no validation data, early stopping, adaptation or scaled targets, unless you
            ask for them. On the command line, `--set train.lr=...` changes one option and keeps the recipe.
        seed: The seed of the first weights, the cohorts and the batches.
        engine: "auto", "serial", "vectorised" or "flower" (a simulation).
        fraction: Share of the agents that participate in each round.
        device: "cpu", "cuda", "mps", or "auto" for the best one available.
        precision: "float32", or "bf16": local training multiplies in bfloat16, on processors that support it.
        joins: Agents that join later: {7: 40} means that agent 7 participates from round 40 on. Rounds count
            from 1.
        leaves: Agents that leave: {7: 40} means that agent 7 participates up to round 39.
        bayes: Best loss of each agent, against which excess risk is measured: "exact" (known), the loss of a
            network trained on the data of its "true" cluster, of the cluster it "learned", or of the "agent" alone,
            or that of the best of several models by cross-validation ("validated"). "auto" takes exact, true or
            validated, the first that the data allow; "none" measures none.
        loss: The loss of training and evaluation: cross-entropy, focal:gamma=2, weighted:1,5 (a weight per class),
            multi-label, squared-error, absolute-error or huber:delta=1; from Python also a torch loss, or a
            function of (outputs, labels) that returns one value per example. Default: cross-entropy for classes,
            multi-label for several labels per example, squared-error in regression.
        metrics: Measured on each agent's test data besides loss and accuracy: auc, average-precision, f1,
            balanced-accuracy, calibration-error, log-loss, accuracy; in regression rmse, mae and r2; and skill, 1 -
            loss / loss of a constant prediction. The first one decides which method is recommended. Default: auc,
            balanced-accuracy and skill where more than two thirds of the training labels are of one class (over all
            agents, or at each on average); rmse, r2 and skill for your own regression. () for none. Also functions,
            called as f(probabilities or values, targets): "my_module:my_metric", an entry point of
            `focusfl.metrics`, and from Python {"my-score": f}.
        validation: Share of each agent's training examples that is set aside: `patience`, lr = "auto", sweeps and
            the agents' own choices decide on them (default: the data set's recipe; 0.2 for your own data).
        patience: Stop after this many evaluations without a lower mean validation loss; the result is that of the
            round with the lowest. The rounds in which FOCUS still has one model for all agents do not count.
            0 never stops (default: the data set's recipe; 12 for your own data).
        eval_every: Rounds between two evaluations; the last round is always evaluated.
        checkpoint_every: Rounds between two checkpoints.
        secure: Across machines: uploads are masked, and the server sees only their sums.
        minimum: Across machines: the number of replies that a round needs; 0 stands for more than half of the
            agents of a round, so that a few of them cannot train alone.
        timeout: Across machines: seconds to wait for a reply.
        wait: Across machines: seconds to wait for agents, at the start and when too few reply.

    Raises:
        InputError: If a value is out of range; the message names the option.
    """

    rounds: int | None = None
    train: Train | None = None
    seed: int = 0
    engine: EngineName = "auto"
    fraction: float = 1.0
    device: DeviceName = "cpu"
    precision: Literal["float32", "bf16"] = "float32"
    joins: Mapping[int, int] = field(default_factory=dict)
    leaves: Mapping[int, int] = field(default_factory=dict)
    bayes: BestLossKind = "auto"
    eval_every: int = 1
    checkpoint_every: int = 10
    secure: bool = False
    minimum: int = 0
    timeout: float = 3600.0
    wait: float = 300.0
    loss: LossOption = None
    metrics: MetricOption | None = None
    validation: float | None = None
    patience: int | None = None

    T: int = field(init=False, repr=False)  # rounds, and ...
    local: Train = field(init=False, repr=False)  # ... options of local training, once they are known

    def __post_init__(self) -> None:
        for name in ("rounds", "seed", "eval_every", "checkpoint_every", "minimum", "patience"):
            value, least = getattr(self, name), 0 if name in ("seed", "minimum", "patience") else 1
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least))
        require("fraction", self.fraction, lambda v: 0 < v <= 1, "above 0 and at most 1")
        require_choice("precision", self.precision, ("float32", "bf16"))
        if self.precision == "bf16" and self.engine == "flower":
            raise InputError("precision = bf16: use engine = serial or vectorised; flower has no bf16")
        if self.bayes not in get_args(BestLossKind):
            raise InputError(f"bayes = {self.bayes!r}: {nearest(str(self.bayes), get_args(BestLossKind))}")
        losses.check_option(self.loss)
        object.__setattr__(self, "metrics", scores.check_option(self.metrics))
        if self.validation is not None:
            require("validation", self.validation, lambda v: 0 <= v < 1, "a share from 0 to below 1")
        require("timeout", self.timeout, lambda v: v > 0, "seconds, more than 0")
        require("wait", self.wait, lambda v: v >= 0, "seconds, 0 or more")
        require_instance("train", self.train, (Train, NoneType), "ff.Train(lr=0.1, ...)")
        for name in ("joins", "leaves"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, {})
        object.__setattr__(self, "T", self.rounds)
        object.__setattr__(self, "local", self.train)

    def updated(self, recipe: Recipe | None = None, **options: Any) -> Settings:
        """Return these settings with other values; a recipe provides what is not set.

        Raises:
            InputError: If there is no option of that name; the message suggests the nearest one.
        """
        known = [f.name for f in fields(self) if f.init]
        for name in options:
            if name not in known:
                raise InputError(f"unknown option {name!r}: {nearest(name, known)}")
        new = replace(self, **options)
        if recipe is None:
            return new
        rounds = recipe.rounds if new.rounds is None else new.rounds
        validation = recipe.validation if new.validation is None else new.validation
        patience = recipe.patience if new.patience is None and validation else new.patience
        return replace(
            new, rounds=rounds, train=new.train or recipe.train, validation=validation, patience=patience or None
        )


def majority(agents: int) -> int:
    """Return the smallest number that is more than half of the agents.

    Example:
        >>> majority(4), majority(5)
        (3, 3)
    """
    return agents // 2 + 1


def takes_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the fields of Settings to the signature of a function that takes them as **options."""
    shown = inspect.signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Settings).parameters.values()]
    added = [p for p in options if p.name not in shown.parameters]
    function.__signature__ = shown.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    return function
