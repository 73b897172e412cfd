"""How good and how fair a model is: pure functions of the E agents' losses. Lower is better, except accuracy."""

from __future__ import annotations

from torch import Tensor


def excess_risk(loss: Tensor, bayes: Tensor) -> Tensor:
    """Return E_e = L_e(theta_e) - min L_e: agent e's loss above the best that its own data allows (eq. 3). [E]

    The minimum is often estimated by a surrogate, so an excess risk can be negative; it is never clipped.

    >>> from torch import tensor
    >>> excess_risk(tensor([0.5, 1.0]), tensor([0.25, 1.25]))
    tensor([ 0.2500, -0.2500])
    """
    return loss - bayes


def faa(excess: Tensor) -> float:
    """Return FAA = max over pairs |E_e1 - E_e2| = max E_e - min E_e (eq. 2). 0 is perfectly fair.

    >>> from torch import tensor
    >>> faa(tensor([0.5, 0.125, 0.25]))
    0.375
    """
    return (excess.max() - excess.min()).item()


def agnostic_loss(loss: Tensor) -> float:
    """Return max_e L_e: the worst agent's loss, over which AFL optimises.

    >>> from torch import tensor
    >>> agnostic_loss(tensor([0.25, 0.5]))
    0.5
    """
    return loss.max().item()


def worst_agent(loss: Tensor) -> int:
    """Return argmax_e L_e, the first one on ties.

    >>> from torch import tensor
    >>> worst_agent(tensor([0.1, 0.9, 0.9]))
    1
    """
    return int((loss == loss.max()).nonzero()[0])


def average(values: Tensor) -> float:
    """Return (1/E) sum_e: the average loss or accuracy. Every agent counts the same, however much data it has.

    >>> from torch import tensor
    >>> average(tensor([0.25, 0.75]))
    0.5
    """
    return values.mean().item()


def accuracy_parity(acc: Tensor) -> float:
    """Return the standard deviation of the agents' accuracies, which q-FFL calls fairness. 0: all are the same.

    >>> from torch import tensor
    >>> accuracy_parity(tensor([0.5, 1.0]))
    0.25
    """
    return acc.std(correction=0).item()


def adjusted_rand_index(found: Tensor, true: Tensor) -> float:
    """Return how well two clusterings agree. 1: the same up to names; about 0: no better than chance.

    >>> from torch import tensor
    >>> adjusted_rand_index(tensor([2, 2, 0]), tensor([0, 0, 1]))
    1.0
    """
    from sklearn.metrics import adjusted_rand_score  # takes a second to import

    return float(adjusted_rand_score(true.tolist(), found.tolist()))
