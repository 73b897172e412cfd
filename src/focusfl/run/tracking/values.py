"""What is tracked of a run, as plain names and numbers: the same for every tool."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focusfl.fairness.metrics import agnostic_loss
from focusfl.fairness.scores import mean
from focusfl.run.result import clusters_of, name_and_options

if TYPE_CHECKING:
    from focusfl.core import Algorithm
    from focusfl.engines import Scores
    from focusfl.run.result import Result
    from focusfl.run.setup import Setup

MAX_NAME = 60  # characters of an agent's name in the name of a value
SETTINGS = (
    "seed",
    "fraction",
    "precision",
    "bayes",
)  # what is logged of a run's settings, besides rounds and train


def parameters(setup: Setup) -> dict[str, str | float | None]:
    """Return what was run: the method and its options, the data's name, the seed, and options of training.

    No path, host, user name, command line or environment variable is among them.
    """
    options, settings = name_and_options(setup.algorithm), setup.settings
    found = {"method": options["algorithm"], "data": setup.fed.name, "rounds": settings.T}
    found |= {name: getattr(settings, name) for name in SETTINGS}
    found |= {"loss": _loss_name(settings.loss), "metrics": ", ".join(setup.engine.metrics)}
    found |= {"engine": setup.engine.name, "agents": setup.E, "classes": setup.fed.classes}
    found |= {f"{options['algorithm']}.{k}": v for k, v in options["params"].items()}
    found |= {f"train.{k}": v for k, v in asdict(settings.local).items()}
    return {k: v if isinstance(v, str | int | float | None) else str(v) for k, v in found.items()}


def _loss_name(loss: object) -> str:
    """A loss as the user wrote it; a function or torch loss of the user's own by its name."""
    if loss is None or isinstance(loss, str):
        return loss or "default"
    return str(getattr(loss, "__name__", type(loss).__name__))


def agent_keys(names: Sequence[str], E: int) -> list[str]:
    """Return what each agent is called in the names of its values: unique, and allowed by every tool.

    Args:
        names: The agents' names, [E]; empty if they have none.
        E: The number of agents.

    Example:
        >>> agent_keys(["bern", "../x", "St. Gallen", "a<b", "a>b"], 5)
        ['bern', '.._x-1', 'St. Gallen', 'a_b-3', 'a_b-4']
        >>> agent_keys([], 2)
        ['0', '1']
    """
    keys = []
    for e, name in enumerate(names or [str(e) for e in range(E)]):
        safe = _safe(name)
        keys.append(safe if safe == name and safe.strip(".") else f"{safe}-{e}")
    return [key if keys.count(key) == 1 else f"{key}-{e}" for e, key in enumerate(keys)]


def round_values(
    scores: Scores, pi: Tensor | None, algorithm: Algorithm, keys: Sequence[str], validation: Scores | None = None
) -> dict[str, float]:
    """Return the values of a round that was evaluated.

    Args:
        scores: Of all agents, on their test data.
        pi: [E, M] the labels, if the method has them.
        algorithm: The method.
        keys: What the agents are called, for those whose own values are wanted.
        validation: Scores on validation data, if there are such data.

    Returns:
        Means over the agents, values of each agent and of each cluster. What is not a finite number is left out:
        an agent that sent no scores has none.
    """
    loss = scores.loss[torch.isfinite(scores.loss)]
    values = {"avg_loss": mean(loss), "agnostic_loss": agnostic_loss(loss)}
    values |= {"validation_loss": None if validation is None else mean(validation.loss)}
    each: dict[str, Tensor] = {"loss": scores.loss}
    if scores.acc is not None:
        values["avg_acc"] = mean(scores.acc)
        each["accuracy"] = scores.acc
    for name, metric in scores.metrics.items():
        values[f"metrics/{_safe(name)}"] = mean(metric)
        each[_safe(name)] = metric
    for name, metric in each.items():
        values |= _by_agent(name, metric, keys)
    return _finite(values | _cluster_values(scores.loss, pi, algorithm, keys))


def _cluster_values(loss: Tensor, pi: Tensor | None, algorithm: Algorithm, keys: Sequence[str]) -> dict[str, float]:
    """Return the effective number of agents of each cluster, the mean loss of its members, and the labels."""
    if pi is None:
        return {}
    values, clusters = {}, clusters_of(algorithm, pi, len(loss))
    for m in range(pi.shape[1]):
        values[f"clusters/{m}/agents"] = float(pi[:, m].sum())
        members = loss[(clusters == m) & torch.isfinite(loss)]
        if len(members):
            values[f"clusters/{m}/loss"] = float(members.double().mean())
        values |= {f"labels/{key}/{m}": float(p) for key, p in zip(keys, pi[:, m], strict=False)}
    return values


def final_values(result: Result, keys: Sequence[str]) -> dict[str, float]:
    """Return what is known only at the end: FAA with its interval, excess risks, and how right the clusters are."""
    interval, ari = result.faa_interval, result.ari
    values = {"faa": result.faa, "train_seconds": result.seconds}
    values |= {} if interval is None else {"faa_low": interval.low, "faa_high": interval.high}
    values |= {} if ari is None else {"ari": ari}
    return _finite(values | _by_agent("excess_risk", result.excess_risk, keys))


def _by_agent(name: str, values: Tensor, keys: Sequence[str]) -> dict[str, float]:
    return {f"agents/{key}/{name}": float(v) for key, v in zip(keys, values, strict=False)}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _safe(name: str) -> str:
    """Replace what a tool does not allow in a name."""
    return re.sub(r"[^\w. -]", "_", name[:MAX_NAME]).strip()
