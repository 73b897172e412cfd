"""The options of FOCUS, and the collaborators that they select."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from focusfl.algorithms.focus.averaging import Averaging, Clip, Mean, Trim
from focusfl.algorithms.focus.merge import MAX_CLUSTERS, AutoSplit
from focusfl.algorithms.focus.pruning import ESTIMATE_MARGIN, Pruning
from focusfl.algorithms.focus.split import Split
from focusfl.algorithms.focus.starts import Independent, Start, Tied
from focusfl.util.errors import InputError, require, require_choice, require_integer


@dataclass(frozen=True)
class FocusOptions:
    """Options of FOCUS.

    Args:
        M: The number of clusters. "auto" (needs init="split") finds it from the agents' updates, and later merges
            clusters whose models agree.
        init: How the clusters start. "split" trains one shared model first and then groups the agents by their
            updates; "tied" makes M noisy copies of one random network; "independent" makes M random networks.
        noise: For init="tied": the standard deviation of the noise, relative to that of each tensor.
        prune: An agent does not train models whose label is at most this, and predicts without models whose label
            is at most this divided by M. The losses of models with a label below prune / e^20 are estimated on a
            tenth of the examples.
        weight_by_n: Average with weights n_e pi_em (which eq. 9 implies) instead of pi_em (eq. 6).
        warmup: For init="split": the number of rounds of the shared model.
        forget: Log labels are multiplied by this before each E step; with less than 1, an agent whose data changes
            can move to another cluster.
        robust: "clip" shortens long updates at the agents; "trim" lets the server, which then sees each agent's
            models, leave out the largest and smallest values; "no" averages all values.
        adapt: After the last round every agent adapts the shared model to its own data (algorithms/adapt.py). None
            means: on a user's own data, and not on those of the paper.

    Raises:
        InputError: An option is out of range; the message names it.
    """

    M: int | Literal["auto"] = "auto"
    init: Literal["split", "tied", "independent"] = "split"
    noise: float = 0.01
    prune: float = 1e-4
    weight_by_n: bool = False
    warmup: int = field(default=3, metadata={"later": True})
    forget: float = field(default=1.0, metadata={"later": True})
    robust: Literal["no", "clip", "trim"] = field(default="no", metadata={"later": True})

    adapt: bool | None = field(default=None, repr=False, metadata={"later": True})

    def __post_init__(self) -> None:
        require_choice("focus.init", self.init, ("split", "tied", "independent"))
        if self.M != "auto":
            require_integer("focus.M", self.M, 1)
        elif self.init != "split":
            advice = f'with init="{self.init}" give a number, for example M=3'
            raise InputError(f'focus.M = auto: M="auto" needs init="split"; {advice}')
        require_integer("focus.warmup", self.warmup, 1)
        require("focus.noise", self.noise, lambda v: v >= 0, "0 or more")
        require("focus.prune", self.prune, lambda v: 0 <= v < 1 / self.starting.M, "from 0 to below 1/M")
        require_choice("focus.robust", self.robust, ("no", "clip", "trim"))
        require("focus.forget", self.forget, lambda v: 0 < v <= 1, "above 0 and at most 1")

    @cached_property
    def starting(self) -> Start:
        """Decides how the clusters start and which are in use."""
        if self.M == "auto":
            return AutoSplit(MAX_CLUSTERS, self.warmup)
        if self.init == "split":
            return Split(self.M, self.warmup)
        return Tied(self.M, self.noise) if self.init == "tied" else Independent(self.M)

    @cached_property
    def averaging(self) -> Averaging:
        """Decides how the models of a cluster are averaged."""
        return {"no": Mean, "clip": Clip, "trim": Trim}[self.robust]()

    @cached_property
    def pruning(self) -> Pruning:
        """Decides which models an agent skips."""
        return Pruning(math.log(self.prune) - ESTIMATE_MARGIN if self.prune else -math.inf)

    @property
    def max_models(self) -> int | None:
        """The largest number of models in w if it changes during training, else None."""
        return self.starting.M if self.init == "split" else None
