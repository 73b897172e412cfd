"""Linear models of scikit-learn on the same features and splits: what the methods of federated learning must beat.

Logistic regression for classes, least squares for regression. "pooled" is one model on the data of all agents
together, with one indicator column per agent; "own" is one model per agent, on its own data alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.data.federation import Federation

Array = NDArray[Any]
SMALLEST_PROBABILITY = 1e-6  # a class that training has not seen would have an infinite loss
MAX_ITERATIONS = 2000


class Scores(NamedTuple):
    """How a baseline does on the agents' test data.

    Attributes:
        loss: Mean log loss, or mean squared error, [E].
        acc: Accuracy, [E]; None in regression.
        loss_se: Standard error of each loss over the test examples, [E]; 0 with one example.
    """

    loss: list[float]
    acc: list[float] | None
    loss_se: list[float]


def pooled(fed: Federation) -> Scores:
    """Train one model on all agents' data, with one indicator column per agent."""
    parts = [fed.train(e) for e in range(fed.E)]
    x = np.concatenate([_with_indicator(_array(part.x), e, fed.E) for e, part in enumerate(parts)])
    predict = fit(x, np.concatenate([part.y.numpy() for part in parts]), fed.classes)
    return _score(fed, lambda e, x: predict(_with_indicator(x, e, fed.E)))


def own(fed: Federation) -> Scores:
    """Train one model per agent on its own data."""
    parts = [fed.train(e) for e in range(fed.E)]
    predictors = [fit(_array(part.x), part.y.numpy(), fed.classes) for part in parts]
    return _score(fed, lambda e, x: predictors[e](x))


BASELINES: dict[str, tuple[str, Callable[[Federation], Scores]]] = {
    "linear:pooled": ("Linear model, pooled", pooled),
    "linear:own": ("Linear model, own", own),
}
"""By the name in natural.json: the title in tables, and the function."""


def fit(x: Array, y: Array, classes: int | None) -> Callable[[Array], Array]:
    """Train a linear model.

    Args:
        x: Features [n, d].
        y: Labels [n].
        classes: The number of classes; None for regression.

    Returns:
        A function from features to values [n], or to probabilities [n, classes]; 0 for a class that y lacks.
    """
    from sklearn.linear_model import LinearRegression, LogisticRegression  # takes a second to import

    if classes is None:
        values: Callable[[Array], Array] = LinearRegression().fit(x, y).predict
        return values
    seen = np.unique(y)
    model = LogisticRegression(max_iter=MAX_ITERATIONS).fit(x, y) if len(seen) > 1 else None

    def probabilities(x: Array) -> Array:
        p = np.zeros((len(x), classes))
        p[:, seen] = 1.0 if model is None else model.predict_proba(x)
        return p

    return probabilities


def example_losses(predicted: Array, y: Array) -> Array:
    """Return the log loss of probabilities [n, C], or the squared error of values [n], of each example. [n]

    >>> example_losses(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])).round(3).tolist()
    [0.693, 13.816]
    """
    if predicted.ndim == 1:
        errors: Array = (predicted - y) ** 2
        return errors
    losses: Array = -np.log(predicted[np.arange(len(y)), y].clip(SMALLEST_PROBABILITY, 1))
    return losses


def _score(fed: Federation, predict: Callable[[int, Array], Array]) -> Scores:
    loss, acc, loss_se = [], [], []
    for e in range(fed.E):
        y = fed.test(e).y.numpy()
        predicted = predict(e, _array(fed.test(e).x))
        each = example_losses(predicted, y)
        loss.append(float(each.mean()))
        loss_se.append(float(each.std(ddof=1)) / sqrt(len(y)) if len(y) > 1 else 0.0)
        if fed.classes is not None:
            acc.append(float((predicted.argmax(1) == y).mean()))
    return Scores(loss, None if fed.classes is None else acc, loss_se)


def _array(x: Any) -> Array:
    flat: Array = x.flatten(1).double().numpy()
    return flat


def _with_indicator(x: Array, e: int, E: int) -> Array:
    """Append E columns: 1 in that of agent e, else 0."""
    indicators = np.zeros((len(x), E))
    indicators[:, e] = 1
    return np.hstack([x, indicators])
