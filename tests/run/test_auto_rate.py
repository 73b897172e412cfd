"""lr = "auto": no divergence, half the rate where the validation loss stalls, groups given up that do not help."""

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.run.early_stopping import LEAST_GAIN, WAIT, EarlyStopping
from focusfl.util.errors import Diverged

STATE = {"w": torch.zeros(1)}


def stopping(settled=lambda server: True, together=lambda server: None, patience=12):
    return EarlyStopping(patience, settled, together, auto_rate=True)


def test_the_rate_is_halved_where_the_loss_stalls_and_training_returns():
    early = stopping()
    early.update(1, 1.0, STATE, {})
    for t in range(2, 2 + WAIT):
        assert early.returns() is None and early.rate == 1
        early.update(t, 1.0 - LEAST_GAIN / 2, STATE, {})  # too little to count
    assert early.returns().round == 1 and early.rate == 0.5


def test_a_divergence_is_taken_back_with_a_quarter_of_the_rate():
    early = stopping()
    assert early.takes_back() and early.rate == 0.25
    assert not EarlyStopping(3, lambda server: True).takes_back()  # with a rate of one's own it is an error


@pytest.mark.parametrize("finds_groups", [True, False])
def test_groups_that_do_not_lower_the_loss_are_given_up_if_the_method_found_them(finds_groups):
    before, after, merged = {"w": torch.zeros(1)}, {"w": torch.ones(1)}, {"w": torch.full((1,), 2.0)}
    early = stopping(lambda s: float(s["w"]) > 0, lambda s: merged if finds_groups else None)
    early.update(1, 1.0, before, {})
    for t in range(2, 2 + WAIT):
        early.update(t, 1.1, after, {})
    back = early.returns()
    if finds_groups:
        assert back.server is merged and early.rate == 1
    else:  # it was told how many: the round after the split is the best so far
        assert early.best.round == 2 and back is None


def tables(scale, seed, classes):
    """Five agents of one kind; each feature has a scale of its own."""
    rng = np.random.default_rng(seed)
    agents = []
    for _ in range(5):
        x = rng.normal(size=(60, 4))
        y = x @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.normal(size=60)
        agents.append((x * scale, (y > 0).astype(int) if classes else 1000 * y + 5000))
    return ff.Federation.from_agents(agents, test=0.3, seed=seed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [True, False])
def test_features_of_any_scale_train_without_diverging(classes, seed):
    scale = 10.0 ** np.random.default_rng([seed, 1]).uniform(-3, 3, 4)
    fed = tables(scale, seed, classes)
    result = ff.fit(ff.FedAvg(), fed, rounds=15, bayes="none")
    constant = np.log(2) if classes else float(fed.testing.y.var())
    assert torch.isfinite(result.loss).all() and float(result.loss.mean()) < 1.2 * constant


def test_a_rate_that_diverges_is_taken_back():
    fed = tables(np.full(4, 1e3), 0, False)
    with pytest.raises(Diverged):
        ff.fit(ff.FedAvg(), fed, rounds=5, train=ff.Train(lr=0.1), model="linear", bayes="none")
    auto = ff.fit(
        ff.FedAvg(),
        fed,
        rounds=5,
        train=ff.Train(lr="auto"),
        model="linear",
        validation=0.2,
        patience=5,
        bayes="none",
    )
    assert torch.isfinite(auto.loss).all()


def test_a_regression_is_trained_on_scaled_targets_and_tells_its_own_units():
    """Targets around 5000: plain units would need thousands of steps for the constant alone."""
    fed = tables(np.ones(4), 0, False)
    result = ff.fit(ff.FedAvg(), fed, rounds=30, bayes="none")
    predicted = torch.cat([result.predict(e, fed.test(e).x) for e in range(5)])
    assert abs(float(predicted.mean()) - 5000) < 500
    errors = (predicted - torch.cat([fed.test(e).y for e in range(5)])).square().mean()
    assert torch.isclose(errors, result.loss.mean(), rtol=1e-3) and float(errors) < 0.3 * float(fed.testing.y.var())


def test_groups_are_those_that_help_on_validation_data():
    """One kind of agents with few noisy examples: whatever the updates look like, one group remains."""
    rng = np.random.default_rng(0)
    agents = [(x, (x[:, 0] + rng.normal(size=24) > 0).astype(int)) for x in rng.normal(size=(8, 24, 6))]
    fed = ff.Federation.from_agents(agents, test=0.3)
    assert ff.fit(ff.Focus(adapt=False), fed, bayes="none").clusters.unique().numel() == 1


@pytest.mark.parametrize("seed", [2, 3])
def test_groups_are_found_whatever_the_optimiser(seed):
    """Updates of Adam say little: with them, these eight agents of two opposite kinds looked alike."""
    x = np.random.default_rng(seed).normal(size=(8, 60, 6))
    fed = ff.Federation.from_agents([(xe, (xe[:, 0] > 0) ^ (e >= 4)) for e, xe in enumerate(x)], test=0.3)
    clusters = ff.fit(ff.Focus(adapt=False), fed, rounds=20, seed=seed, bayes="none").clusters.tolist()
    assert len({*clusters[:4]}) == len({*clusters[4:]}) == 1 and clusters[0] != clusters[4]
