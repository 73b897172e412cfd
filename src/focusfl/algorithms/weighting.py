"""How an agent counts in an average of models: by its number of examples, or as much as any other agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from focusfl.core import Agent, Algorithm, Wrapper


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The option `weight_by_n` of methods whose papers weigh agents by their numbers of examples.

    Args:
        weight_by_n: Weigh agents by their numbers of examples, as in the paper. None means: yes, but no on a user's
            own data, where FOCUS weighs all agents alike, and a comparison should not be one of weights.
    """

    weight_by_n: bool | None = field(default=None, metadata={"later": True})

    def weight(self, agent: Agent) -> Tensor:
        """Return the agent's weight in an average, []."""
        return torch.ones_like(agent.n) if self.weight_by_n is False else agent.n

    def total_weight(self, n: Tensor, agents: int) -> Tensor:
        """Return what the weights of some agents add up to, given the sum of their examples."""
        return torch.tensor(float(agents)) if self.weight_by_n is False else n

    def __repr__(self) -> str:
        """As of any dataclass, but without weight_by_n = None: runs of older releases have the same identity."""
        shown = [f for f in fields(self) if f.name != "weight_by_n" or self.weight_by_n is not None]
        return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


def with_common_weights(algorithms: Sequence[Algorithm], alike: bool = False) -> list[Algorithm]:
    """Return methods that are compared, so that none differs from FOCUS by its weights unless it was asked to.

    Args:
        algorithms: The methods. If FOCUS was asked to weigh by n, the others do so too, unless they were asked.
        alike: Whether the others weigh all agents alike otherwise.
    """
    each = [unwrapped(algorithm) for algorithm in algorithms]
    own = [a.weight_by_n for a in each if hasattr(a, "weight_by_n") and not isinstance(a, Weighting)]  # of FOCUS
    by_n = bool(own) and all(own)
    return [decide_weights(algorithm, by_n) for algorithm in algorithms] if by_n or alike else list(algorithms)


def unwrapped(algorithm: Algorithm) -> Algorithm:
    """Return the method inside of wrappers."""
    return unwrapped(algorithm.inner) if isinstance(algorithm, Wrapper) else algorithm


def decide_weights(algorithm: Algorithm, by_n: bool) -> Algorithm:
    """Return the method with a decision where its option `weight_by_n` is None; others stay as they are.

    Args:
        algorithm: The method.
        by_n: Whether None means by numbers of examples.
    """
    if isinstance(algorithm, Wrapper):
        return replace(algorithm, inner=decide_weights(algorithm.inner, by_n))
    if not isinstance(algorithm, Weighting) or algorithm.weight_by_n is not None:
        return algorithm
    decided: Algorithm = replace(algorithm, weight_by_n=by_n)
    return decided
