"""The options of FOCUS, and the collaborators they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from focusfl.algorithms.focus.averaging import Averaging, Clip, Mean, Trim
from focusfl.algorithms.focus.merge import AutoSplit
from focusfl.algorithms.focus.pruning import Pruning
from focusfl.algorithms.focus.split import Split
from focusfl.algorithms.focus.starts import Independent, Start, Tied
from focusfl.util.errors import InputError, require, require_choice, require_integer


@dataclass(frozen=True)
class FocusOptions:
    """Options of FOCUS.

    Args:
        M: Number of clusters. "auto" (needs init="split") finds it from the agents' updates, and later joins
            clusters whose models agree.
        init: How the clusters start. "split" trains one shared model first and then groups the agents by their
            updates; "tied" makes M noisy copies of one random network; "independent" makes M random networks.
        noise: For init="tied": standard deviation of the noise, relative to that of each parameter tensor.
        prune: Models whose label is at most this are neither trained by the agent in that round nor asked for its
            prediction. Models whose label is smaller still by e^20 are judged on a tenth of the examples.
        weight_by_n: Average with weights n_e pi_em (which eq. 9 implies) instead of pi_em (eq. 6).
        warmup: For init="split": rounds of the shared model.
        forget: Log labels are multiplied by this before each E step; below 1, an agent whose data change can move.
        robust: "clip" shortens long updates at the agents; "trim" lets the server, which then sees each agent's
            models, leave out the largest and smallest values; "no" averages all.
    """

    M: int | Literal["auto"] = "auto"
    init: Literal["split", "tied", "independent"] = "split"
    noise: float = 0.01
    prune: float = 1e-4
    weight_by_n: bool = False
    warmup: int = field(default=3, metadata={"later": True})
    forget: float = field(default=1.0, metadata={"later": True})
    robust: Literal["no", "clip", "trim"] = field(default="no", metadata={"later": True})

    def __post_init__(self) -> None:
        require_choice("focus.init", self.init, ("split", "tied", "independent"))
        if self.M != "auto":
            require_integer("focus.M", self.M, 1)
        elif self.init != "split":
            advice = f'with init="{self.init}" give a number, for example M=3'
            raise InputError(f'focus.M = auto: M="auto" needs init="split"; {advice}')
        require_integer("focus.warmup", self.warmup, 1)
        require("focus.noise", self.noise, self.noise >= 0, "0 or more")
        require("focus.prune", self.prune, 0 <= self.prune < 1 / self.clusters.M, "from 0 to below 1/M")
        require_choice("focus.robust", self.robust, ("no", "clip", "trim"))
        require("focus.forget", self.forget, 0 < self.forget <= 1, "above 0 and at most 1")

    @cached_property
    def clusters(self) -> Start:
        """How the clusters start, and which are in use."""
        if self.M == "auto":
            return AutoSplit(self.warmup)
        if self.init == "split":
            return Split(self.M, self.warmup)
        return Tied(self.M, self.noise) if self.init == "tied" else Independent(self.M)

    @cached_property
    def averaging(self) -> Averaging:
        """How the models of a cluster are averaged."""
        return {"no": Mean, "clip": Clip, "trim": Trim}[self.robust]()

    @cached_property
    def pruning(self) -> Pruning:
        """Which models an agent skips."""
        return Pruning(self.prune)

    @property
    def max_models(self) -> int | None:
        """How many models w may hold, where their number changes while training."""
        return self.clusters.M if self.init == "split" else None
