"""What a constant prediction reaches, and which metrics are shown where accuracy says little."""

import functools
import math
import operator

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import tensor

import focusfl as ff
from focusfl.fairness import scores
from focusfl.run.setup import Setup

CLASSES = [(np.zeros((4, 1)), np.array([0, 0, 0, 1])), (np.zeros((4, 1)), np.array([1, 1, 1, 1]))]
TESTS = [(np.zeros((2, 1)), np.array([0, 1])), (np.zeros((3, 1)), np.array([1, 1, 1]))]


def engine(agents, tests, **options):
    fed = ff.Federation.from_agents(agents, test=tests, model=lambda: ff.models.linear(1, 2), classes=2)
    return Setup.of(ff.FedAvg(), fed, 1, **options).engine


def test_a_constant_prediction_of_classes_by_hand():
    """Half an example is added to each class: 3.5 : 1.5 of 5 for the first agent, 0.5 : 4.5 for the second."""
    found = engine(CLASSES, TESTS, validation=0.0).constant
    first, second = (math.log(1 / 0.7) + math.log(1 / 0.3)) / 2, math.log(1 / 0.9)
    assert found.loss.tolist() == pytest.approx([first, second], rel=1e-5)
    assert found.acc.tolist() == [0.5, 1.0] and found.decidable.tolist() == [True, False]
    skill = found.skill(tensor([first / 2, 0.0]))
    assert skill[0] == pytest.approx(0.5, rel=1e-5) and skill[1].isnan()


def test_validation_data_are_labels_that_the_agent_knows():
    with_all, split = (engine(CLASSES, TESTS, validation=v).constant for v in (0.0, 0.5))
    assert torch.equal(with_all.loss, split.loss)


def test_a_constant_prediction_of_numbers_is_the_mean_of_the_training_labels():
    y, held = np.array([1.0, 3.0]), np.array([2.0, 5.0])
    fed = ff.Federation.from_agents([(np.zeros((2, 1)), y)] * 2, test=[(np.zeros((2, 1)), held)] * 2)
    result = Setup.of(ff.FedAvg(), fed, 1, validation=0.0)
    assert result.engine.constant.loss.tolist() == pytest.approx([4.5, 4.5])  # (0 + 9) / 2
    assert result.engine.constant.acc is None and tuple(result.engine.metrics) == ("rmse", "r2", "skill")


def test_auc_is_that_of_scikit_learn_with_ties_too():
    rng = np.random.default_rng(0)
    for n in (5, 40, 400):
        score, y = rng.integers(0, 4, n) / 4, rng.integers(0, 2, n)
        y[:2] = 0, 1
        p = tensor(np.stack([1 - score, score], 1))
        assert scores.auc(p, tensor(y)) == pytest.approx(roc_auc_score(y, score), abs=1e-12)


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([[0, 0, 0, 0, 1, 1]] * 2, False),  # two thirds, no more
        ([[0, 0, 0, 0, 0, 1, 1]] * 2, True),  # five sevenths
        ([[0, 0, 0, 1], [1, 1, 1, 0]], True),  # balanced over all, but not at the agents
        ([[0, 0, 0, 1], [1, 1, 1, 0], [0, 1], [1, 0]], False),  # 5/8 on average
        ([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1], [1, 0]], True),  # 3/4
        ([[0, 1, 2], [2, 1, 0]], False),
    ],
)
def test_classes_are_unbalanced_beyond_two_thirds(agents, expected):
    sizes = tensor([0] + [len(y) for y in agents]).cumsum(0)
    assert scores.unbalanced(tensor(functools.reduce(operator.iadd, agents, [])), sizes) == expected


def test_metrics_are_shown_by_default_where_classes_are_unbalanced():
    assert tuple(engine(CLASSES, TESTS).metrics) == ("auc", "balanced-accuracy", "skill")
    assert tuple(engine(CLASSES, TESTS, metrics="f1").metrics) == ("f1",)
    assert not engine(CLASSES, TESTS, metrics=()).metrics
    assert not engine(
        [CLASSES[0], (CLASSES[1][0], np.array([0, 0, 1, 1]))] + [TESTS[0]] * 3, [TESTS[0]] * 5
    ).metrics
    for named in (ff.data.synthetic(), ff.data.rotated_digits(seed=0)):  # the paper's tables stay as they are
        assert not Setup.of(ff.FedAvg(), named, 1).engine.metrics


@pytest.mark.parametrize("name", ["serial", "vectorised"])
def test_skill_of_a_run_is_made_of_its_losses(name):
    rng = np.random.default_rng(1)
    agents = [(x := rng.normal(size=(60, 3)), (x[:, 0] > 1).astype(int)) for _ in range(3)]
    result = ff.fit(ff.FedAvg(), ff.Federation.from_agents(agents), rounds=2, engine=name)
    expected = 1 - result.loss.double() / result.setup.engine.constant.loss
    assert torch.allclose(result.metrics["skill"], expected) and next(iter(result.row()["metrics"])) == "auc"
    assert result.row()["constant_acc"] == pytest.approx(float(result.setup.engine.constant.acc.mean()))


def test_errors_in_the_units_of_the_target_grow_with_it():
    rng = np.random.default_rng(2)
    agents = [(x := rng.normal(size=(40, 2)), x[:, 0] + rng.normal(size=40)) for _ in range(2)]
    small, large = (
        ff.fit(ff.FedAvg(), ff.Federation.from_agents([(x, k * y) for x, y in agents]), rounds=3).metrics
        for k in (1.0, 1000.0)
    )
    assert torch.allclose(1000 * small["rmse"], large["rmse"], rtol=1e-2)
    assert torch.allclose(small["r2"], large["r2"], atol=1e-2) and torch.allclose(
        small["skill"], large["skill"], atol=1e-2
    )
