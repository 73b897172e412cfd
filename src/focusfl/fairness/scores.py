"""Metrics of one agent's predictions besides loss and accuracy: by name, or functions of the user's own.

A function of the user's own is passed, or named as "my_module:my_metric" or by an entry point of `focusfl.metrics`.

A metric is a function of (predictions, targets): probabilities [n, C] and classes [n]; with several labels per
example their probabilities and 0 or 1, both [n, L]; in regression values [n] and numbers [n]. Where it is not
defined, as the area under the curve of a single class, it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from focusfl.util import plugins
from focusfl.util.errors import InputError, nearest

Metric = Callable[[Tensor, Tensor], float]
MetricOption = str | Sequence[str] | Mapping[str, str | Metric]
"""Names of metrics, or functions by the name under which results show them."""

BINS = 10  # of the calibration error
RESERVED = ("round", "seconds", "agent", "loss", "acc", "avg_loss", "agnostic_loss", "avg_acc", "validation_loss")


def auc(p: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve: of class 1 of two, else the mean over the classes against the rest.

    Classes that no example has, or all have, are left out.

    >>> auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    return _mean_over_classes(p, y, _area)


def average_precision(p: Tensor, y: Tensor) -> float:
    """Return the average precision: of class 1 of two, else the mean over the classes as for `auc`.

    >>> average_precision(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), torch.tensor([1, 0, 1]))
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score  # takes a second to import

    def curve(truth: Tensor, score: Tensor) -> float:
        return float(average_precision_score(truth.numpy(), score.numpy()))

    return _mean_over_classes(p, y, curve)


def f1(p: Tensor, y: Tensor) -> float:
    """Return the F1 score: of class 1 of two, else the mean over the classes that occur or are predicted.

    >>> f1(torch.tensor([[0.2, 0.8], [0.4, 0.6], [0.7, 0.3]]), torch.tensor([1, 0, 1]))
    0.5
    """
    truth, predicted = _indicators(y, p.shape[1]), _decisions(p, y)
    if y.dim() == 1 and p.shape[1] == 2:
        truth, predicted = truth[:, 1:], predicted[:, 1:]
    both = (truth & predicted).sum(0).double()
    each = 2 * both / (truth.sum(0) + predicted.sum(0))  # 0 / 0: neither occurs nor is predicted
    return float(each.nanmean())


def balanced_accuracy(p: Tensor, y: Tensor) -> float:
    """Return the mean over the classes of the share of their examples that are recognised.

    With several labels per example, the mean over labels of the same for the classes 0 and 1.

    >>> balanced_accuracy(torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
    0.75
    """
    truth, right = _indicators(y, p.shape[1]), _indicators(y, p.shape[1]) & _decisions(p, y)
    if y.dim() == 1:
        occurs = truth.any(0)
        return float((right.sum(0) / truth.sum(0))[occurs].double().mean()) if occurs.sum() > 1 else math.nan
    rejected = ~truth & ~_decisions(p, y)
    each = (right.sum(0) / truth.sum(0) + rejected.sum(0) / (~truth).sum(0)) / 2
    return float(each.double().nanmean())


def calibration_error(p: Tensor, y: Tensor) -> float:
    """Return the expected calibration error: |accuracy - confidence| in 10 bins (Guo et al. 2017).

    The confidence is the largest probability; with several labels, that of the more likely value of each label.

    >>> round(calibration_error(torch.tensor([[0.95, 0.05], [0.75, 0.25]]), torch.tensor([0, 1])), 3)
    0.4
    """
    if y.dim() == 1:
        confidence, right = p.max(1).values.double(), (p.argmax(1) == y).double()
    else:
        confidence = torch.maximum(p, 1 - p).flatten().double()
        right = (_decisions(p, y) == y.bool()).flatten().double()
    at = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # bins (0, 0.1], ..., (0.9, 1]
    gaps = torch.zeros(BINS, dtype=torch.double).index_add_(0, at, right - confidence)
    return float(gaps.abs().sum() / len(confidence))


def log_loss(p: Tensor, y: Tensor) -> float:
    """Return the mean of -log p_y; with several labels, also the mean over labels.

    >>> round(log_loss(torch.tensor([[0.25, 0.75]]), torch.tensor([1])), 4)
    0.2877
    """
    right = p.gather(1, y.unsqueeze(1)) if y.dim() == 1 else torch.where(y > 0, p, 1 - p)
    return float(-right.double().clamp_min(1e-12).log().mean())


def accuracy(p: Tensor, y: Tensor) -> float:
    """Return the share of examples whose class is predicted; with several labels, that of labels.

    >>> accuracy(torch.tensor([[0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 0]))
    0.5
    """
    right = p.argmax(1) == y if y.dim() == 1 else _decisions(p, y) == y.bool()
    return float(right.double().mean())


def skill(p: Tensor, y: Tensor) -> float:
    """Stand for 1 - loss / loss of a constant prediction: it needs the training labels (fairness/constant.py)."""
    raise NotImplementedError


def rmse(values: Tensor, y: Tensor) -> float:
    """Return the root of the mean squared error, which is in the target's own units.

    >>> rmse(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0])) == 4.5**0.5
    True
    """
    return float((values.double() - y.double()).square().mean().sqrt())


def mae(values: Tensor, y: Tensor) -> float:
    """Return the mean absolute error.

    >>> mae(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))
    1.5
    """
    return float((values.double() - y.double()).abs().mean())


def r2(values: Tensor, y: Tensor) -> float:
    """Return R^2 = 1 - squared error / variance; NaN if all targets are equal.

    >>> r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0])) == 1 - 1 / (14 / 3)
    True
    """
    target = y.double()
    spread = float((target - target.mean()).square().sum())
    return 1 - float((values.double() - target).square().sum()) / spread if spread else math.nan


FOR_CLASSES: dict[str, Metric] = {
    "auc": auc,
    "average-precision": average_precision,
    "f1": f1,
    "balanced-accuracy": balanced_accuracy,
    "calibration-error": calibration_error,
    "log-loss": log_loss,
    "accuracy": accuracy,
}
FOR_NUMBERS: dict[str, Metric] = {"rmse": rmse, "mae": mae, "r2": r2}
BUILT_IN = FOR_CLASSES | FOR_NUMBERS | {"skill": skill}
LOWER_IS_BETTER = ("calibration-error", "log-loss", "rmse", "mae")  # of the metrics built in; the others: higher
UNITS = ("rmse", "mae")  # metrics in the units of a regression's target
UNBALANCED = 2 / 3  # share of the training labels in one class, above which accuracy says little
IF_UNBALANCED = ("auc", "balanced-accuracy", "skill")  # the metrics of unbalanced classes, and ...
IF_NUMBERS = ("rmse", "r2", "skill")  # ... of a regression on a user's own data, if none are asked for


def metric(name: str) -> Metric:
    """Return the metric of that name; one of the user's own is imported.

    Args:
        name: A key of BUILT_IN, an entry point of `focusfl.metrics`, or "my_module:my_metric".

    Raises:
        InputError: There is none, or it is not a function; the message suggests the nearest.
    """
    check_name(name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    own = plugins.is_reference(name)
    found = plugins.load_object(name) if own else plugins.entry_point("focusfl.metrics", name)
    if isinstance(found, type) or not callable(found):
        raise InputError(f"metrics: {name} is not a function of (predictions, targets)")
    function: Metric = found
    return function


def check_name(name: str) -> None:
    """Raise an InputError unless there may be a metric of that name. Nothing is imported."""
    if name not in BUILT_IN and not plugins.is_reference(name):
        points = plugins.entry_points("focusfl.metrics")
        if name not in points:
            raise InputError(f"metrics: unknown metric {name!r}: {nearest(name, [*BUILT_IN, *points])}")


def largest_shares(y: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
    """Return the share of the most frequent class, over all agents and of each agent [E].

    >>> largest_shares(torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 2, 5]))
    (0.6, tensor([1., 1.], dtype=torch.float64))
    """

    def share(labels: Tensor) -> float:
        return float(torch.bincount(labels).max()) / len(labels)

    y = y.long().cpu()
    each = [share(labels) for labels in y.split(offsets.diff().tolist())]
    return share(y), torch.tensor(each, dtype=torch.double)


def unbalanced(y: Tensor, offsets: Tensor) -> bool:
    """Say whether one class has more than two thirds of the labels: over all agents, or at each agent on average.

    The second is the accuracy that agents have if each always predicts its most frequent class.

    Args:
        y: The training labels: classes [N], agent after agent.
        offsets: [E + 1].
    """
    overall, each = largest_shares(y, offsets)
    return max(overall, float(each.mean())) > UNBALANCED


def resolve(metrics: MetricOption | None, classes: int | None, own_tables: bool = False) -> dict[str, Metric]:
    """Return the functions by name.

    Args:
        metrics: Names, or functions by name; None for the default.
        classes: The number of classes; None for regression.
        own_tables: Whether None stands for the metrics of tables at nodes, of which nobody knows how unbalanced
            they are over all nodes; otherwise for no metrics.

    Raises:
        InputError: A name is unknown, or its metric does not apply to such labels.
    """
    found: dict[str, Metric] = {}
    if metrics is None and own_tables:
        metrics = IF_NUMBERS if classes is None else IF_UNBALANCED
    for shown, given in _pairs(metrics or ()).items():
        unfit, others = (FOR_CLASSES, FOR_NUMBERS) if classes is None else (FOR_NUMBERS, FOR_CLASSES)
        if isinstance(given, str) and given in unfit:
            labels = "numbers" if classes is None else "classes"
            raise InputError(f"metrics: {given} does not apply, the labels are {labels}: use {', '.join(others)}")
        found[shown] = metric(given) if isinstance(given, str) else given
    return found


def check_option(metrics: MetricOption | None) -> MetricOption | None:
    """Return the option in its usual form, a tuple of names or a dict; check what does not depend on the data.

    A text may hold several names, separated by commas. Nothing is imported: settings are also read from files.
    None stays: the data decide.
    """
    if metrics is None:
        return None
    if isinstance(metrics, str):
        metrics = tuple(name.strip() for name in metrics.split(",") if name.strip())
    if not isinstance(metrics, Mapping):
        names = tuple(metrics) if isinstance(metrics, Iterable) else (metrics,)
        if not all(isinstance(name, str) for name in names):
            raise InputError("metrics: expected names, or a dict of functions by name")
        metrics = names
    for shown, given in _pairs(metrics).items():
        if shown in RESERVED:
            raise InputError(f"metrics: {shown} is measured anyway: use another name")
        if isinstance(given, str):
            check_name(given)
        elif not callable(given):
            raise InputError(f"metrics: {shown} is not a function of (predictions, targets)")
    return metrics


def measure(
    metrics: Mapping[str, Metric],
    predictions: Tensor,
    y: Tensor,
    offsets: Tensor,
    skills: Callable[[], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return each metric of each agent, [E] by name; NaN where it is not defined.

    Args:
        metrics: The functions by name.
        predictions: Probabilities [N, C] or values [N], agent after agent.
        y: Targets [N] or [N, C].
        offsets: [E + 1]; agent e has examples offsets[e] to offsets[e + 1].
        skills: Returns the skill of each agent, [E] (fairness/constant.py); without it, none is defined.

    Raises:
        InputError: A function fails, or does not return a number.
    """
    predictions, y = predictions.detach().cpu(), y.cpu()
    spans = [slice(a, b) for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)]
    found: dict[str, Tensor] = {}
    for name, function in metrics.items():
        if function is skill:
            found[name] = torch.full((len(spans),), torch.nan) if skills is None else skills()
            found[name] = found[name].double().cpu()
            continue
        each = []
        for e, span in enumerate(spans):
            try:
                each.append(float(function(predictions[span], y[span])))
            except Exception as error:
                raise InputError(f"metrics: {name} failed for agent {e}: {error}") from error
        found[name] = torch.tensor(each, dtype=torch.double)
    return found


def mean(values: Tensor) -> float | None:
    """Return the mean over the agents for whom a value is defined; None if it is for none.

    >>> mean(torch.tensor([0.5, torch.nan, 1.0]))
    0.75
    """
    known = values[torch.isfinite(values)]
    return float(known.double().mean()) if len(known) else None


def defined(values: Tensor) -> list[float | None]:
    """Return one number per agent, None where it is not defined: JSON has no NaN.

    >>> defined(torch.tensor([0.5, torch.nan]))
    [0.5, None]
    """
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _pairs(metrics: MetricOption) -> dict[str, str | Metric]:
    if isinstance(metrics, str):
        return {metrics: metrics}
    return dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in metrics}


def _indicators(y: Tensor, classes: int) -> Tensor:
    """Return whether an example is of a class or has a label, [n, C]."""
    return y.bool() if y.dim() == 2 else y.unsqueeze(1) == torch.arange(classes)


def _decisions(p: Tensor, y: Tensor) -> Tensor:
    """Return whether an example is predicted to be of a class or to have a label, [n, C]."""
    return p > 0.5 if y.dim() == 2 else p.argmax(1, keepdim=True) == torch.arange(p.shape[1])


def _area(truth: Tensor, score: Tensor) -> float:
    """Return the chance that an example of the class has a higher score than another one; ties count a half."""
    from scipy.stats import rankdata  # takes a second to import

    ranks, positive = torch.from_numpy(rankdata(score.numpy())), int(truth.sum())
    above = float(ranks[truth].sum()) - positive * (positive + 1) / 2
    return above / (positive * (len(truth) - positive))


def _mean_over_classes(p: Tensor, y: Tensor, curve: Callable[[Tensor, Tensor], float]) -> float:
    truth = _indicators(y, p.shape[1])
    columns = [1] if y.dim() == 1 and p.shape[1] == 2 else range(p.shape[1])
    defined = [c for c in columns if truth[:, c].any() and not truth[:, c].all()]
    return sum(curve(truth[:, c], p[:, c]) for c in defined) / len(defined) if defined else math.nan
