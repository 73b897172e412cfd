"""What a method discloses to the server about one agent: measured in real rounds of small agents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from focusfl.algorithms import ALGORITHMS
from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import flatten, repeat
from focusfl.data.federation import Federation
from focusfl.engines.base import Replies
from focusfl.engines.serial import Serial
from focusfl.models import mlp
from focusfl.models.task import InitialWeights, Task

AGENTS, ROUNDS = 7, 5
SEVERAL = 3  # more clusters than these disclose the same


DECISIVE = ("M", "init", "robust", "keep")  # options that change what a method discloses


def disclosed(name: str, params: Mapping[str, Any] | None = None) -> str:
    """Say what the server sees.

    Args:
        name: A key of ALGORITHMS.
        params: The method's options, as a row has them; default: the method's defaults.

    Returns:
        The entries that the server sees agent by agent, those that it sees summed, and those that it keeps; or
        "unknown", if there is no such method with such options.

    >>> disclosed("fedavg")
    'only sums over the agents: theta, n'
    >>> disclosed("afl")
    'of each agent: loss (a number); sums: theta, lam; keeps of each agent: lam'
    >>> disclosed("focus", {"M": 3, "init": "independent"})
    'only sums over the agents: theta, pi'
    """
    options = {k: v for k, v in (params or {}).items() if k in DECISIVE}
    if isinstance(M := options.get("M"), int):
        options["M"] = min(M, SEVERAL)
    try:
        return _disclosed(ALGORITHMS[name](**options))
    except (KeyError, TypeError, ValueError):  # the user's own method, or options of another release
        return "unknown"


@cache
def _disclosed(algorithm: Algorithm) -> str:
    if (needed := algorithm.prerequisite()) is not None:
        algorithm = needed.with_clusters(torch.arange(AGENTS) % 2)
    agents = [(torch.eye(2), torch.tensor([0, 1]))] * AGENTS
    fed = Federation.from_agents(agents, test=agents)
    networks = InitialWeights(lambda: mlp(2, 2, 2), seed=0)
    engine = Serial(Task(networks.network(), fed.classes), fed, Train(steps=1), ROUNDS, 0)
    start = algorithm.start(networks, AGENTS)
    rounds = _replies(algorithm, engine, start)
    sums = ", ".join(dict.fromkeys(k for one in rounds for k in one.add))
    always = {k: v for k, v in rounds[0].each.items() if all(k in later.each for later in rounds)}
    sometimes = {k: v for one in rounds for k, v in one.each.items() if k not in always}
    view, kept = flatten(algorithm.downlink(start, torch.tensor(0))), {}
    for path, v in flatten(start).items():  # does an agent receive a row of its own?
        if path in view and v.shape[:1] == (AGENTS,) and view[path].shape == v.shape[1:]:
            *owner, leaf = path.split("/")
            kept[owner[0] if leaf in networks.network().state_dict() else leaf] = path  # a model counts as one
    if not always and not sometimes and not kept:
        return f"only sums over the agents: {sums}" if sums else "nothing"
    parts = [f"of each agent: {_kinds(always)}"] if always else []
    parts += [f"of each agent, in some rounds: {_kinds(sometimes)}"] if sometimes else []
    parts += [f"sums: {sums}"] if sums else []
    parts += [f"keeps of each agent: {', '.join(kept)}"] if kept else []
    return "; ".join(parts)


def _replies(algorithm: Algorithm, engine: Serial, server: State) -> list[Replies]:
    """Return what the server sees in each of some rounds."""
    states, rounds = repeat(algorithm.enroll(server), AGENTS), []
    for t in range(ROUNDS):
        rounds.append(engine.round(algorithm, server, states, t, np.arange(AGENTS)))
        server = algorithm.aggregate(server, rounds[-1].add, rounds[-1].each, torch.arange(AGENTS))
    return rounds


def _kinds(each: State) -> str:
    """Name the entries with their kind, for example "loss (a number)"."""

    def kind(v: Any) -> str:
        return "a model" if isinstance(v, dict) else ["a number", "a vector", "a matrix"][v.dim() - 1]

    return ", ".join(f"{k} ({kind(v)})" for k, v in each.items() if v != {})
