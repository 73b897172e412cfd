"""What a method tells the server about one agent: looked up in real rounds of small agents."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import ALGORITHMS
from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import repeat
from focusfl.data.federation import Federation
from focusfl.engines.base import Replies
from focusfl.engines.serial import Serial
from focusfl.models import mlp
from focusfl.models.task import InitialWeights, Task

AGENTS, ROUNDS = 7, 5


@cache
def tells(name: str) -> str:
    """
    >>> tells("focus")
    'of each agent, at times: sketch (a vector); sums: theta, pi, held, voters, agree; keeps of each agent: given'
    >>> tells("fedavg")
    'sums over the agents alone: theta, n'
    >>> tells("afl")
    'of each agent: loss (a number); sums: theta, lam; keeps of each agent: lam'
    """
    algorithm = ALGORITHMS[name]()
    if (needed := algorithm.prerequisite()) is not None:
        algorithm = needed.with_clusters(torch.arange(AGENTS) % 2)
    agents = [(torch.eye(2), torch.tensor([0, 1]))] * AGENTS
    fed = Federation.from_agents(agents, test=agents)
    networks = InitialWeights(lambda: mlp(2, 2, 2), seed=0)
    engine = Serial(Task(networks.network(), fed.classes), fed, Train(steps=1), ROUNDS, 0)
    first = algorithm.start(networks, AGENTS)
    seen = _seen(algorithm, engine, first)
    add = seen[0].add
    each = {k: v for k, v in seen[0].each.items() if all(k in later.each for later in seen)}
    some = {k: v for one in seen for k, v in one.each.items() if k not in each}
    view = algorithm.downlink(first, torch.tensor(0))
    kept = [k for k, v in first.items() if not isinstance(v, dict) and k in view and _sliced(v, view[k])]
    if not each and not some and not kept:
        return f"sums over the agents alone: {', '.join(add)}" if add else "nothing"
    parts = [f"of each agent: {_named(each)}"] if each else []
    parts += [f"of each agent, at times: {_named(some)}"] if some else []
    parts += [f"sums: {', '.join(add)}"] if add else []
    parts += [f"keeps of each agent: {', '.join(kept)}"] if kept else []
    return "; ".join(parts)


def _seen(algorithm: Algorithm, engine: Serial, server: State) -> list[Replies]:
    """What the server sees in each of some rounds."""
    states, seen = repeat(algorithm.enroll(server), AGENTS), []
    for t in range(ROUNDS):
        seen.append(engine.round(algorithm, server, states, t, np.arange(AGENTS)))
        server = algorithm.aggregate(server, seen[-1].add, seen[-1].each, torch.arange(AGENTS))
    return seen


def _named(each: State) -> str:
    return ", ".join(f"{k} ({_kind(v)})" for k, v in each.items() if v != {})


def _sliced(whole: Tensor, view: Tensor) -> bool:
    """Does an agent receive a row of its own of this?"""
    return whole.shape[:1] == (AGENTS,) and view.shape == whole.shape[1:]


def _kind(v: Any) -> str:
    """v: [C, ...], or models."""
    return "a model" if isinstance(v, dict) else ["a number", "a vector", "a matrix"][v.dim() - 1]
