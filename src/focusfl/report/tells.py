"""What a method tells the server about one agent: looked up in a real upload of two small agents."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from focusfl.algorithms import ALGORITHMS
from focusfl.data.federation import Federation
from focusfl.models import mlp
from focusfl.train import Train
from focusfl.training import Setup


@cache
def tells(name: str) -> str:
    """
    >>> tells("focus")
    'sums over the agents alone: theta, pi'
    >>> tells("afl")
    'of each agent: loss (a number); sums: theta, lam'
    """
    algorithm = ALGORITHMS[name]()
    if algorithm.first() is not None:
        algorithm = algorithm.given(torch.tensor([0, 1]))
    agents = [(torch.eye(2), torch.tensor([0, 1]))] * 2
    fed = Federation.from_agents(agents, test=agents, model=lambda: mlp(2, 2, 2))
    setup = Setup.of(algorithm, fed, 1, train=Train(steps=1), engine="serial")
    server, states = setup.start()
    add, each = setup.runner.round(algorithm, server, states, 0, np.arange(2))
    if not each:
        return f"sums over the agents alone: {', '.join(add)}" if add else "nothing"
    seen = f"of each agent: {', '.join(f'{k} ({_kind(v)})' for k, v in each.items())}"
    return seen + (f"; sums: {', '.join(add)}" if add else "")


def _kind(v: Any) -> str:
    """v: [C, ...], or models."""
    return "a model" if isinstance(v, dict) else "a number" if v.dim() == 1 else "numbers"
