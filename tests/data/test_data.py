"""Federations contain what they should, and refuse data that cannot be used."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import focusfl as ff
from focusfl.util.errors import InputError

# --- synthetic


def fitted(fed, e):
    x, y = fed.test(e)
    return np.linalg.lstsq(x.double().numpy(), y.double().numpy(), rcond=None)[0]


def test_synthetic_geometry():
    fed = ff.data.synthetic(seed=3, n_test=20000)
    mu = np.array([fitted(fed, e) for e in range(10)])
    centre = mu[:9].mean(0)
    # mu_e is estimated to sigma sqrt(d / n) = 0.002
    assert (np.linalg.norm(mu[:9] - centre, axis=1) < 0.01 + 0.01).all()
    assert abs(np.linalg.norm(mu[9] - centre) - 1) < 0.03
    assert fed.clusters.tolist() == [0] * 9 + [1]
    assert fed.classes is None and fed.E == 10
    assert fed.training.sizes.tolist() == [100] * 10
    residual = fed.test(0).y.double().numpy() - fed.test(0).x.double().numpy() @ mu[0]
    assert abs(residual.std() - 0.1) < 0.003


def test_synthetic_with_several_outliers_and_noise_per_agent():
    sigma = [0.1] * 6 + [0.5] * 4
    fed = ff.data.synthetic(seed=0, outliers=4, outlier_clusters=2, R=2.0, sigma=sigma, n_test=20000)
    assert fed.clusters.tolist() == [0] * 6 + [1, 2, 1, 2]
    mu = np.array([fitted(fed, e) for e in range(10)])
    assert abs(np.linalg.norm(mu[6] - mu[0]) - 2) < 0.1
    assert abs(np.linalg.norm(mu[6] - mu[7]) - 2 * 2**0.5) < 0.1
    assert np.linalg.norm(mu[6] - mu[8]) < 0.1
    assert torch.allclose(fed.bayes, torch.tensor(sigma).square())


@pytest.mark.slow
def test_fedavg_theory_on_synthetic_data():
    """Equal n, one outlier of E = 10 at R = 1: mean at 0.1 from the others, 0.9 from the outlier."""
    results = [ff.fit(ff.FedAvg(), ff.data.synthetic(seed=s), seed=s) for s in range(4)]
    outlier = np.mean([r.excess_risk[9].item() for r in results])
    others = np.mean([r.excess_risk[:9].mean().item() for r in results])
    assert abs(outlier - 0.81) < 0.06 and abs(others - 0.01) < 0.01


@pytest.mark.slow
def test_focus_on_synthetic_data_finds_the_outlier_and_is_fair():
    for s in range(3):
        result = ff.fit(ff.Focus(M=2), ff.data.synthetic(seed=s), seed=s)
        assert result.ari == 1 and result.faa < 0.005


# --- digits


def test_every_digit_is_in_exactly_one_agent_rotated_as_specified():
    fed = ff.data.rotated_digits(seed=5)
    images, labels = load_digits(return_X_y=True)
    found = []
    for e, k in enumerate([0] * 7 + [1, 1, 2]):
        for part in (fed.train(e), fed.test(e)):
            back = torch.rot90(part.x, -k, dims=(1, 2)).flatten(1) * 16
            found += [(tuple(row), label) for row, label in zip(back.int().tolist(), part.y.tolist(), strict=True)]
    true = [(tuple(int(v) for v in row), int(label)) for row, label in zip(images, labels, strict=True)]
    assert sorted(found) == sorted(true)
    assert fed.clusters.tolist() == [0] * 7 + [1, 1, 2]
    assert max(fed.training.sizes) - min(fed.training.sizes) <= 1


def test_digits_differ_by_seed_and_repeat_with_it():
    a, b, c = (ff.data.rotated_digits(seed=s).fingerprint for s in (0, 0, 1))
    assert a == b != c


def test_four_quarter_turns_are_none():
    turned = ff.data.rotated_digits(seed=0, turns=[0, 4, 8])
    upright = ff.data.rotated_digits(seed=0, turns=[0, 0, 0])
    assert turned.fingerprint == upright.fingerprint and turned.clusters.tolist() == [0, 0, 0]


# --- a user's own


def good(n=6):
    return np.arange(2.0 * n).reshape(n, 2), np.arange(n) % 3


def test_own_data_is_split_without_loss():
    x, y = good(10)
    fed = ff.Federation.from_agents([(x, y), (x + 100, y)], test=0.3, clusters=["a", "b"])
    for e, shift in ((0, 0), (1, 100)):
        both = torch.cat([fed.train(e).x, fed.test(e).x])[:, 0] - shift
        assert sorted(both.tolist()) == x[:, 0].tolist() and len(fed.test(e).y) == 3
    assert fed.clusters.tolist() == [0, 1] and fed.classes == 3


def test_pooling_keeps_every_example():
    x, y = good()
    fed = ff.Federation.from_agents([(x, y), (x + 100, y), (x + 200, y)], test=[(x, y)] * 3)
    pooled = fed.pool(torch.tensor([0, 1, 0]))
    assert pooled.E == 2
    assert pooled.train(0).x[:, 0].tolist() == [*x[:, 0], *(x[:, 0] + 200)]
    assert pooled.train(1).x[:, 0].tolist() == (x[:, 0] + 100).tolist()


def broken(change):
    x, y = good()
    return [good(), change(x, y)]


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([], "no agents"),
        ([good()], "one agent"),
        (broken(lambda x, y: (x[:0], y[:0])), "agent 1.*no examples"),
        (broken(lambda x, y: (np.where(x == 7, np.nan, x), y)), "agent 1.*x, row 3.*NaN"),
        (broken(lambda x, y: (np.where(x == 4, np.inf, x), y)), "agent 1.*x, row 2.*infinite"),
        (broken(lambda x, y: (x, y - 1)), "agent 1.*row 0.*label -1"),
        (broken(lambda x, y: (x[:, :1], y)), r"agent 1.*shape \[1\].*\[2\]"),
        (broken(lambda x, y: (x, y[:-1])), "agent 1.* 6 rows"),
        (broken(lambda x, y: (x, y * 0.5)), "agent 1.*labels are"),
        (broken(lambda x, y: (x, list("abcdef"))), "agent 1, y:.*numbers"),
        (broken(lambda x, y: x), "agent 1: .*pair"),
        (broken(lambda x, y: (x[:, 0], y)), "agent 1, x: expected"),
        (broken(lambda x, y: (x[:1], y[:1])), "agent 1: 1 example.*split"),
    ],
)
def test_bad_data_is_refused_with_the_place(agents, message):
    with pytest.raises(InputError, match=message):
        ff.Federation.from_agents(agents, test=0.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 2}, "row 2.*label 2"),
        ({"classes": 2, "test": np.float32(0.5)}, "row 2.*label 2"),
        ({"test": 1}, "test = 1"),
        ({"seed": -1}, "seed = -1"),
        ({"test": 1.5}, "test = 1.5"),
        ({"test": [good()]}, "test has 1 agent"),
        ({"clusters": [0]}, "clusters has 1 entr"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ff.Federation.from_agents([good(), good()], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"E": 1}, "data.E"),
        ({"outliers": 10}, "data.outliers"),
        ({"outliers": 2, "outlier_clusters": 3}, "data.outlier_clusters"),
        ({"outliers": 3, "outlier_clusters": 3, "d": 2}, "data.d"),
        ({"sigma": [0.1, 0.2]}, "data.sigma"),
        ({"sigma": -1.0}, "data.sigma"),
        ({"sigma": float("nan")}, "data.sigma"),
        ({"seed": -1}, "data.seed"),
        ({"n": 0}, "data.n"),
    ],
)
def test_synthetic_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ff.data.synthetic(**options)


def test_a_model_that_does_not_fit_the_data_is_refused():
    fed = ff.Federation.from_agents([good(), good()])
    tokens = ff.Federation.from_agents([([[1, 2], [3, 4]], [0, 1])] * 2, test=0.5, tokens=True)
    with pytest.raises(InputError, match="no default model"):
        ff.fit(ff.FedAvg(), tokens, rounds=1)
    with pytest.raises(InputError, match=r"inputs of shape \[2\]"):
        ff.fit(ff.FedAvg(), fed, rounds=1, model=torch.nn.Linear(5, 3))
    with pytest.raises(InputError, match="3 outputs"):
        ff.fit(ff.FedAvg(), fed, rounds=1, model=torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="no parameters"):
        ff.fit(ff.FedAvg(), fed, rounds=1, model=torch.nn.ReLU())
    with pytest.raises(InputError, match="a tuple"):
        ff.fit(ff.FedAvg(), fed, rounds=1, model=torch.nn.RNN(2, 3))


def test_whole_numbers_for_an_embedding():
    rng = np.random.default_rng(0)
    agents = [(rng.integers(0, 20, (30, 4)), rng.integers(0, 2, 30)) for _ in range(3)]
    fed = ff.Federation.from_agents(agents, tokens=True)
    network = torch.nn.Sequential(torch.nn.Embedding(20, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    result = ff.fit(ff.FedAvg(), fed, model=network, rounds=2)
    assert result.predict(agent=0, x=agents[0][0]).shape == (30, 2)


def test_every_agent_of_rotated_digits_has_training_data():
    assert ff.data.rotated_digits(test=0.999).training.sizes.min() >= 1
