"""The best loss of an agent where it is not known: which candidate is best, and how far that is from the truth.

A candidate is a way to train a model. Every candidate is judged on examples that it was not trained on, and the
chosen one is measured on the agent's test examples. Pure functions; C candidates, E agents, K folds.

A model that was trained on n examples has, on average, a loss of about L + c / n, where L is the best loss of its
kind. Trained without one of K folds it has L + c K / ((K - 1) n). So (K - 1) times the difference is c / n, the
error of estimation, and the loss with all examples minus that is an estimate of L.
docs/decisions/35-validated-best-losses.md
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from focusfl.fairness.examples import Examples, agent_means, standard_error

SHARED_EXAMPLES = 100  # what the other agents say about a candidate counts as much as this many examples of its own
Z = 1.959964  # the normal quantile of a 95 % interval


class Limits(NamedTuple):
    """The 95 % interval of each agent's best loss, [E]."""

    low: Tensor
    estimate: Tensor
    high: Tensor


def choose(losses: Tensor, n: Tensor) -> Tensor:
    """Choose the candidate of each agent: the least validated loss, shrunk towards what is best for all agents.

    Losses count as differences from the agent's least one. An agent with n examples gives the mean
    over all agents' examples the weight of SHARED_EXAMPLES, and its own the weight n.

    Args:
        losses: The validated loss of each candidate for each agent, [C, E].
        n: On how many examples they are, [E]; with 0 the agent's losses are ignored.

    Returns:
        The index of the chosen candidate, [E].

    >>> from torch import tensor
    >>> losses = tensor([[1.0, 1.0, 2.0], [2.0, 2.0, 1.0]])
    >>> choose(losses, tensor([100, 100, 100])), choose(losses, tensor([100, 100, 1]))
    (tensor([0, 0, 1]), tensor([0, 0, 0]))
    """
    known = n > 0
    gaps = torch.where(known, losses.double() - losses.double().amin(0), 0)
    shared = (n * gaps).sum(1, keepdim=True) / n.sum().clamp_min(1)
    return (n * gaps + SHARED_EXAMPLES * shared).argmin(0)


def estimation_error(final: Examples, folds: Tensor) -> Tensor:
    """Return how much the loss of each agent would fall with unlimited training examples, [E]; at least 0.

    Args:
        final: The loss of every test example under the models trained on all training examples.
        folds: The same for the models trained without one of K folds, [K, N].
    """
    rise = folds.double().mean(0) - final.excess.double()
    return (len(folds) - 1) * agent_means(Examples(rise, final.at)).clamp_min(0)


def limits(final: Examples, folds: Tensor, alone: Tensor) -> Limits | None:
    """Estimate the best loss of each agent.

    Its standard error has two parts: that of the test examples, and the error of estimation, which is known only
    roughly. A model that several agents share may not come as close to the best one as a model of the agent's own,
    however many examples it has; but then it was chosen because its own would have cost more: the error of
    estimation counts as at least that of the model trained alone.

    Args:
        final: The loss of every test example under the chosen candidates, trained on all training examples.
        folds: The same for the candidates trained without one of K folds, [K, N].
        alone: The error of estimation of each agent's model trained alone, [E].

    Returns:
        The interval of each agent; None if an agent has too few test examples.
    """
    rise = folds.double().mean(0) - final.excess.double()
    error = estimation_error(final, folds)
    sampling = standard_error(Examples(final.excess - (len(folds) - 1) * rise, final.at))
    estimate = agent_means(final) - error
    half = Z * torch.hypot(sampling, torch.maximum(error, alone))
    if not torch.isfinite(half).all():
        return None
    least = min(0.0, float(final.excess.min()))  # no loss of an example was lower
    return Limits(*((estimate + sign * half).clamp_min(least).float() for sign in (-1, 0, 1)))
