"""Candidates for the best loss on tables, from scikit-learn: linear models and gradient boosting.

linear, pooled    one model for all agents, with one indicator column per agent
linear, own       one model per agent
boosted           histogram gradient boosting on all agents' rows, with the agent as one more column
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from focusfl.models.task import Task
from focusfl.run.folds import Folds

Array = NDArray[Any]
ITERATIONS = (8, 16, 32, 64, 128)  # of boosting, after which the model is a candidate
LEAVES, LEAST_IN_LEAF = 15, 10
MAX_CATEGORIES = 255  # agents that scikit-learn takes as categories; more are a number
MAX_WORK = 1e7  # examples x columns x classes


def apply(folds: Folds, task: Task) -> bool:
    """Say whether the data is a table of numbers of moderate size, with one label per example."""
    x, classes = folds.rows.x, folds.fed.classes or 1
    is_table = x.dim() == 2 and x.is_floating_point() and bool(torch.isfinite(x).all())
    return is_table and task.loss.default and not folds.fed.multi_label and x.numel() * classes <= MAX_WORK


def losses(folds: Folds, task: Task) -> dict[str, Tensor]:
    """Train on each fold's examples, and return the losses.

    Args:
        folds: The examples.
        task: It scores the predictions.

    Returns:
        By the name of the candidate, the loss of each example under the model of each fold, [models, N]; NaN where
        a model is not judged on an example. Nothing if a fold has examples of one class only.
    """
    rows, classes, E = folds.rows, folds.fed.classes, folds.fed.E
    x, y, agent = rows.x.double().numpy(), rows.y.numpy(), folds.agent.numpy()
    found: dict[str, Tensor] = {}
    for k in range(folds.models):
        train, judged = folds.training(k).numpy(), folds.judged(k).numpy()
        if classes is not None and len(np.unique(y[train])) < 2:
            return {}
        made = dict(_boosted(x, y, agent, train, judged, classes, E))
        scaled = (x - x[train].mean(0)) / x[train].std(0).clip(1e-12)
        if len(x) * (x.shape[1] + E) * (classes or 1) <= MAX_WORK:
            wide = np.hstack([scaled, np.eye(E)[agent]])
            made["linear, pooled"] = _linear(wide[train], y[train], classes)(wide[judged])
        made["linear, own"] = _own(scaled, y, agent, train, judged, classes)
        for name, predicted in made.items():
            each = found.setdefault(name, torch.full((folds.models, len(x)), torch.nan))
            each[k, judged] = task.score(torch.from_numpy(predicted).float(), rows.y[judged]).loss
    return found


def _boosted(
    x: Array, y: Array, agent: Array, train: Array, judged: Array, classes: int | None, E: int
) -> Iterator[tuple[str, Array]]:
    """Yield probabilities [n, C], or values [n, 1], after each number of iterations."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # takes a second

    x = np.column_stack([x, agent])
    made = HistGradientBoostingRegressor if classes is None else HistGradientBoostingClassifier
    model = made(
        max_iter=max(ITERATIONS),
        max_leaf_nodes=LEAVES,
        min_samples_leaf=LEAST_IN_LEAF,
        early_stopping=False,
        categorical_features=[x.shape[1] - 1] if E <= MAX_CATEGORIES else None,
        random_state=0,
    ).fit(x[train], y[train])
    stages = model.staged_predict(x[judged]) if classes is None else model.staged_predict_proba(x[judged])
    for n, predicted in enumerate(stages, 1):
        if n in ITERATIONS:
            yield f"boosted, {n} trees", _columns(predicted, model, classes)


def _own(x: Array, y: Array, agent: Array, train: Array, judged: Array, classes: int | None) -> Array:
    """Predict with one linear model per agent."""
    predicted = np.zeros((len(x), classes or 1))
    for e in np.unique(agent):
        mine = agent == e
        predicted[mine & judged] = _linear(x[mine & train], y[mine & train], classes)(x[mine & judged])
    return predicted[judged]


def _linear(x: Array, y: Array, classes: int | None) -> Any:
    """Train a linear model with a small penalty; return its predictions as a function."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if classes is None:
        ridge = Ridge().fit(x, y)
        return lambda new: _columns(ridge.predict(new), ridge, None)
    if len(np.unique(y)) < 2:  # the share of its class, with one example more of each class
        shares = (np.bincount(y, minlength=classes) + 1) / (len(y) + classes)
        return lambda new: np.tile(shares, (len(new), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        logistic = LogisticRegression(max_iter=200).fit(x, y)
    return lambda new: _columns(logistic.predict_proba(new), logistic, classes)


def _columns(predicted: Array, model: Any, classes: int | None) -> Array:
    """Return values as one column, and probabilities with a column for every class; 0 for one that was not seen."""
    if classes is None:
        return predicted[:, None]
    p = np.zeros((len(predicted), classes))
    p[:, model.classes_] = predicted
    return p
