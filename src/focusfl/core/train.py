"""The options of local training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from focusfl.util.errors import require, require_choice, whole_number

Optimiser = Literal["sgd", "adam", "adamw", "rmsprop"]
AUTO_LR: dict[Optimiser, float] = {"sgd": 0.1, "adam": 0.01, "adamw": 0.01, "rmsprop": 0.01}
"""Where lr = "auto" starts."""


@dataclass(frozen=True)
class Train:
    """How an agent trains in one round. By default: plain SGD on full batches.

    The optimiser's memory (momentum, moments) starts over each round.

    Args:
        lr: The learning rate eta. "auto" starts with one that suits the optimiser (AUTO_LR). If the mean validation
            loss does not fall any more, or training diverges, the run returns to its best round and goes on with
            half or a quarter of the rate.
        steps: The number of local steps K.
        epochs: The number of passes over the agent's data; replaces `steps`.
        batch: The number of examples in a batch. None takes all examples in every step.
        optimiser: "sgd", "adam", "adamw" or "rmsprop", with torch's defaults: moments 0.9 and 0.999 of Adam and
            AdamW, 0.99 of RMSprop.
        momentum: The momentum of SGD.
        weight_decay: The weight decay.
        schedule: How the learning rate changes over the rounds: "constant", "cosine" or "step".
        decay: For schedule="step": the factor that the learning rate is multiplied with.
        decay_every: For schedule="step": the number of rounds between two decays.

    Raises:
        InputError: An option is out of range; the message names it.

    Example:
        >>> Train(lr=0.5, epochs=1, batch=32).epochs
        1
    """

    lr: float | Literal["auto"] = 0.1
    steps: int = 10
    epochs: int | None = None
    batch: int | None = None
    optimiser: Optimiser = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "step"] = "constant"
    decay: float = 0.1
    decay_every: int = 100

    def __post_init__(self) -> None:
        if self.lr != "auto":
            require("lr", self.lr, lambda v: v > 0, 'a positive number, or "auto"')
        for name in ("steps", "epochs", "batch", "decay_every"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value, 1))
        require_choice("optimiser", self.optimiser, get_args(Optimiser))
        require("momentum", self.momentum, lambda v: 0 <= v < 1, "from 0 to below 1")
        require("weight_decay", self.weight_decay, lambda v: v >= 0, "0 or more")
        known = ("constant", "cosine", "step")
        require("schedule", self.schedule, self.schedule in known, "one of " + ", ".join(known))
        require("decay", self.decay, lambda v: 0 < v <= 1, "above 0 and at most 1")

    def with_steps(self, steps: int | None) -> Train:
        """Return the options with another number of local steps; None leaves them as they are."""
        return self if steps is None else replace(self, steps=steps, epochs=None)

    def lr_at(self, t: int, rounds: int) -> float:
        """Return the learning rate of round t = 0, 1, ... out of `rounds`; after the last one, that of the first.

        Example:
            >>> Train(lr=0.5, schedule="cosine").lr_at(5, 10)
            0.25
            >>> Train(lr=0.5, schedule="step", decay=0.5, decay_every=2).lr_at(4, 10)
            0.125
        """
        lr = AUTO_LR[self.optimiser] if self.lr == "auto" else self.lr
        if t >= rounds:  # agents adapt the trained model
            return lr
        if self.schedule == "cosine":
            return lr * 0.5 * (1 + math.cos(math.pi * t / rounds))
        if self.schedule == "step":
            return float(lr * self.decay ** (t // self.decay_every))
        return lr


PLAIN = Train()
"""Plain SGD on full batches."""
