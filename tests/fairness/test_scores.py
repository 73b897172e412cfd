"""Metrics by name against scikit-learn and numbers worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import tensor

from focusfl.fairness import scores
from focusfl.util.errors import InputError


def draw(n: int, classes: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    p = torch.from_numpy(rng.dirichlet([1.0] * classes, n))
    return p, torch.from_numpy(np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)]))


def test_two_classes_as_in_scikit_learn():
    p, y = draw(60, 2)
    positive, predicted = p[:, 1].numpy(), p.argmax(1).numpy()
    assert scores.auc(p, y) == pytest.approx(sk.roc_auc_score(y, positive))
    assert scores.average_precision(p, y) == pytest.approx(sk.average_precision_score(y, positive))
    assert scores.f1(p, y) == pytest.approx(sk.f1_score(y, predicted))
    assert scores.balanced_accuracy(p, y) == pytest.approx(sk.balanced_accuracy_score(y, predicted))
    assert scores.log_loss(p, y) == pytest.approx(sk.log_loss(y, p.numpy()))


def test_many_classes_as_in_scikit_learn():
    p, y = draw(60, 4)
    predicted = p.argmax(1).numpy()
    assert scores.auc(p, y) == pytest.approx(sk.roc_auc_score(y, p.numpy(), multi_class="ovr"))
    assert scores.f1(p, y) == pytest.approx(sk.f1_score(y, predicted, average="macro"))
    assert scores.balanced_accuracy(p, y) == pytest.approx(sk.balanced_accuracy_score(y, predicted), abs=1e-6)
    assert scores.log_loss(p, y) == pytest.approx(sk.log_loss(y, p.numpy()))


def test_several_labels_as_in_scikit_learn():
    rng = np.random.default_rng(1)
    p, y = torch.from_numpy(rng.uniform(size=(50, 3))), torch.from_numpy(rng.integers(0, 2, (50, 3))).float()
    predicted = (p > 0.5).numpy()
    assert scores.auc(p, y) == pytest.approx(sk.roc_auc_score(y, p.numpy(), average="macro"))
    assert scores.average_precision(p, y) == pytest.approx(sk.average_precision_score(y, p.numpy()))
    assert scores.f1(p, y) == pytest.approx(sk.f1_score(y, predicted, average="macro"))
    each = [sk.balanced_accuracy_score(y[:, c], predicted[:, c]) for c in range(3)]
    assert scores.balanced_accuracy(p, y) == pytest.approx(np.mean(each), abs=1e-6)
    flat = np.stack([1 - p.flatten().numpy(), p.flatten().numpy()], 1)
    assert scores.log_loss(p, y) == pytest.approx(sk.log_loss(y.flatten(), flat))


def test_numbers_as_in_scikit_learn():
    rng = np.random.default_rng(2)
    values, y = torch.from_numpy(rng.normal(size=(2, 30)))
    assert scores.mae(values, y) == pytest.approx(sk.mean_absolute_error(y, values))
    assert scores.r2(values, y) == pytest.approx(sk.r2_score(y, values))


def test_calibration_error_by_hand():
    # confidences 0.95, 0.95 (one right), 0.55 (right): 2/3 * |1/2 - 0.95| + 1/3 * |1 - 0.55|
    p, y = tensor([[0.95, 0.05], [0.95, 0.05], [0.45, 0.55]]), tensor([0, 1, 1])
    assert scores.calibration_error(p, y) == pytest.approx(2 / 3 * 0.45 + 1 / 3 * 0.45)
    assert scores.calibration_error(tensor([[1.0, 0.0]]), tensor([0])) == 0
    both = scores.calibration_error(tensor([[0.95, 0.45]]), tensor([[1.0, 1.0]]))  # 0.95 right, 0.55 wrong
    assert both == pytest.approx((0.05 + 0.55) / 2)


def test_what_is_not_defined_is_nan_without_a_warning():
    one_class = tensor([[0.7, 0.3], [0.2, 0.8]]), tensor([0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(
            math.isnan(scores.metric(k)(*one_class)) for k in ("auc", "average-precision", "balanced-accuracy")
        )
        assert math.isnan(scores.f1(tensor([[0.7, 0.3]]), tensor([0])))  # class 1 is neither there nor predicted
        assert math.isnan(scores.r2(tensor([1.0, 2.0]), tensor([1.0, 1.0])))
    third = tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]])  # of three classes, one does not occur
    assert scores.auc(third, tensor([0, 1, 0])) == 1
    assert scores.balanced_accuracy(third, tensor([0, 1, 0])) == 0.75


def test_each_agent_is_measured_on_its_own_rows():
    p, y = tensor([0.0, 1.0, 5.0]), tensor([1.0, 1.0, 2.0])
    found = scores.measure({"mae": scores.mae, "n": lambda p, y: len(y)}, p, y, tensor([0, 2, 3]))
    assert found["mae"].tolist() == [0.5, 3.0] and found["n"].tolist() == [2.0, 1.0]
    with pytest.raises(InputError, match="odd failed for agent 0"):
        scores.measure({"odd": lambda p, y: None}, p, y, tensor([0, 3]))


@pytest.mark.parametrize(
    ("metrics", "classes", "word"),
    [
        (("auk",), 2, "auc"),
        ("auc", None, "mae"),
        (("r2",), 3, "log-loss"),
        ({"mine": 3}, 2, "mine"),
        ({"loss": scores.mae}, None, "loss"),
        ([scores.mae], None, "names"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused(metrics, classes, word):
    with pytest.raises(InputError, match=word):
        scores.resolve(scores.check_option(metrics), classes)
