"""Agents adapt the shared model to their own data: what they gain, what the server sees, what decides."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

import focusfl as ff
from focusfl.algorithms.adapt import EM_ROUNDS, TEMPERATURE, VARIANCE_EXAMPLES, WEIGH, Adapted, Path, weights
from focusfl.core import Data
from focusfl.core.tree import take
from focusfl.engines.one_agent import LocalAgent
from focusfl.models.task import Task
from focusfl.run.setup import Setup
from focusfl.util.errors import CannotRun, InputError

OWN = ff.Train(lr="auto", optimiser="adam", steps=20, batch=64)
AIDS = {"validation": 0.2, "train": OWN, "bayes": "none"}


def linear_agents(offsets, n=40, seed=0, noise=0.1):
    """y = x_1 + offset_e + noise: agents with the same slope and intercepts of their own."""
    rng = np.random.default_rng(seed)
    agents = []
    for offset in offsets:
        x = rng.normal(size=(2 * n, 2))
        agents.append((x, x[:, 0] + offset + noise * rng.normal(size=2 * n)))
    return ff.Federation.from_agents(agents, test=0.5)


# --- the weights of the candidates, by hand


def test_weights_are_an_e_step_over_validation_losses():
    """4 examples with mean losses 1 and 2: the likelihoods differ by the factor exp(4 TEMPERATURE)."""
    equal = {"prior": torch.tensor([0.5, 0.5]), "variance": torch.tensor(1.0)}
    pi = weights(equal, torch.tensor([1.0, 2.0]), torch.tensor(4.0))
    assert math.isclose(float(pi[0] / pi[1]), math.exp(4 * TEMPERATURE), rel_tol=1e-5)


@given(st.integers(1, 30), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_in_a_regression_the_weights_integrate_over_the_variance_of_errors(n, one, two, variance):
    """The likelihood of n errors, integrated over a variance with the conjugate prior, by numbers."""

    def log_likelihood(loss):
        prior = stats.invgamma(VARIANCE_EXAMPLES / 2, scale=VARIANCE_EXAMPLES * variance / 2)
        log_v = np.linspace(np.log(1e-6), np.log(1e8), 20001)
        v = np.exp(log_v)
        logs = -n / 2 * np.log(2 * np.pi * v) - n * loss / (2 * v) + prior.logpdf(v) + log_v
        return special.logsumexp(logs)

    equal = {"prior": torch.tensor([0.5, 0.5]), "variance": torch.tensor(variance, dtype=torch.double)}
    losses = torch.tensor([one, two], dtype=torch.double)
    pi = weights(equal, losses, torch.tensor(float(n)), log_loss=False).double()
    expected = special.expit(TEMPERATURE * (log_likelihood(one) - log_likelihood(two)))
    assert math.isclose(float(pi[0]), expected, rel_tol=1e-3, abs_tol=1e-6)


def test_an_agent_without_validation_examples_follows_the_others():
    prior = torch.tensor([0.7, 0.2, 0.1])
    assert torch.allclose(
        weights({"prior": prior, "variance": torch.tensor(1.0)}, torch.zeros(3), torch.tensor(0.0)), prior
    )


def test_the_prior_is_the_mean_over_the_agents_and_one_that_prefers_nothing():
    method = Adapted(ff.FedAvg())
    G = method.G
    adapt = {"phase": torch.tensor(WEIGH), "prior": torch.full((G,), 1 / G), "variance": torch.tensor(1.0)}
    pi = torch.zeros(G).index_fill(0, torch.tensor(0), 3.0)  # three agents, all for the shared prediction
    after = method.aggregate({"adapt": adapt}, {"pi": pi, "agents": torch.tensor(3.0)}, {}, torch.arange(3))
    expected = torch.full((G,), 1 / G / 4).index_fill(0, torch.tensor(0), (3 + 1 / G) / 4)
    assert torch.allclose(after["adapt"]["prior"], expected)


def test_a_candidate_held_near_its_start_is_that_of_ridge_regression():
    """The mean squared error plus c / (2 n) |w - w0|^2 is least where (X^T X + c/2 I) w = X^T y + c/2 w0."""
    rng = np.random.default_rng(4)
    x, y, c = rng.normal(size=(20, 3)), rng.normal(size=20), 10.0
    task = Task(torch.nn.Linear(3, 1, bias=False), classes=None)
    data = Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
    agent = LocalAgent(task, data, ff.Train(lr=0.1), 0.1, seed=0, t=0, e=0)
    start = {k: v.unsqueeze(0) for k, v in task.weights().items()}
    (found,) = Adapted(ff.FedAvg())._along(Path("weights", (1000,), examples=c), start, agent)
    w0 = start["weight"].flatten().double().numpy()
    expected = np.linalg.solve(x.T @ x + c / 2 * np.eye(3), x.T @ y + c / 2 * w0)
    assert np.allclose(found["weight"].flatten().numpy(), expected, atol=1e-4)


# --- what agents gain


def test_agents_with_intercepts_of_their_own_get_them():
    """One model for all has the variance of the offsets as its excess loss: 8.25."""
    offsets = np.arange(10) - 4.5
    fed = linear_agents(offsets)
    shared = ff.fit(ff.FedAvg(), fed, rounds=20, **AIDS)
    own = ff.fit(Adapted(ff.FedAvg()), fed, rounds=20, **AIDS)
    assert abs(float(shared.loss.mean()) - offsets.var()) < 2
    assert float(own.loss.mean()) < 0.05 * offsets.var()
    assert (own.loss < shared.loss).sum() >= 8


def test_agents_that_are_alike_lose_nothing():
    fed = linear_agents([0.0] * 6, n=30, noise=1.0)
    shared = ff.fit(ff.FedAvg(), fed, rounds=15, **AIDS)
    own = ff.fit(Adapted(ff.FedAvg()), fed, rounds=15, **AIDS)
    assert float(own.loss.mean()) < 1.05 * float(shared.loss.mean())


def test_test_data_decide_nothing():
    fed = linear_agents([0.0, 1.0, 5.0], n=20)
    other = dataclasses.replace(
        fed, testing=dataclasses.replace(fed.testing, x=fed.testing.x * 0, y=fed.testing.y - 9)
    )
    a, b = (ff.fit(ff.Focus(), each, rounds=6) for each in (fed, other))
    assert torch.equal(a.states["adapt"]["pi"], b.states["adapt"]["pi"])
    assert torch.equal(a.predict(0, fed.test(0).x), b.predict(0, fed.test(0).x))


@pytest.mark.parametrize("classes", [False, True])
def test_engines_agree(classes):
    fed = linear_agents([0.0, 2.0, 2.5], n=15)
    if classes:
        agents = [(fed.train(e).x, fed.train(e).y > 1) for e in range(fed.E)]
        fed = ff.Federation.from_agents(agents, test=0.5)
    train = ff.Train(lr=0.01, optimiser="adam", steps=5)
    each = [
        ff.fit(Adapted(ff.FedAvg(), steps=64), fed, rounds=3, engine=engine, **AIDS | {"train": train})
        for engine in ("serial", "vectorised")
    ]
    assert torch.allclose(each[0].states["adapt"]["pi"], each[1].states["adapt"]["pi"], atol=1e-3)
    assert torch.allclose(each[0].loss, each[1].loss, rtol=1e-3)


# --- what the server sees


def test_the_server_sees_sums_alone_and_the_models_stay():
    fed = linear_agents([0.0, 3.0], n=15)
    setup = Setup.of(Adapted(ff.FedAvg(), steps=64), fed, 1, **AIDS)
    server, states = setup.start()
    method, rows, seen = setup.algorithm, setup.fed, []
    while (server := method.finish(server)) is not None:
        last, uploads = server, []
        for e in range(2):
            agent = LocalAgent(setup.task, rows.training.of(e), OWN, 0.01, 0, 1, e, rows.validation.of(e))
            state, upload = method.local(method.downlink(server, torch.tensor(e)), take(states, e), agent)
            uploads.append(upload)
            for name, v in (state["adapt"] if int(server["adapt"]["phase"]) else {}).items():
                if isinstance(v, torch.Tensor):
                    states["adapt"][name][e] = v
        assert all(upload.each == {} for upload in uploads)
        seen.append({name: v.numel() for name, v in uploads[0].add.items()})
        add = {name: sum(u.add[name] for u in uploads) for name in uploads[0].add}
        server = method.aggregate(server, add, {}, torch.arange(2))
    G = method.G
    assert seen == [{"least": 1, "n": 1}, *[{"pi": G, "agents": 1}] * EM_ROUNDS, {"agents": 1}]
    assert torch.isclose(last["adapt"]["prior"].sum(), torch.tensor(1.0))


# --- when


def test_own_data_adapt_by_default_and_the_papers_algorithm_never_does():
    fed = linear_agents([0.0, 1.0])
    assert isinstance(Setup.of(ff.Focus(), fed).algorithm, Adapted)
    for method, data, options in (
        (ff.Focus(), ff.data.synthetic(), {}),
        (ff.Focus.algorithm1(2), fed, {}),
        (ff.Focus(adapt=False), fed, {}),
        (ff.Focus(), fed, {"validation": 0.0}),
        (ff.FedAvg(), fed, {}),
    ):
        assert not isinstance(Setup.of(method, data, 1, **options).algorithm, Adapted)


def test_what_cannot_adapt_says_so():
    fed = linear_agents([0.0, 1.0])
    with pytest.raises(CannotRun, match="Local"):
        Setup.of(Adapted(ff.Local()), fed, 1)
    with pytest.raises(InputError, match="validation"):
        Setup.of(ff.Focus(adapt=True), fed, 1, validation=0.0)
    with pytest.raises(InputError, match=r"adapt\.steps"):
        Adapted(ff.FedAvg(), steps=3)


def test_a_newcomer_adapts_the_models_to_its_own_data():
    """Offsets 0 to 5 are known; a newcomer with offset 9 is served far better with labels than without."""
    fed = linear_agents(range(6))
    result = ff.fit(ff.Focus(), fed, rounds=15)
    new = linear_agents([9.0, 0.0], seed=1)
    x, y = new.train(0)
    test = new.test(0)
    assigned = result.assign(x, y).predict(test.x)
    assert float((assigned - test.y).square().mean()) < 0.2 * float(
        (result.predict(5, test.x) - test.y).square().mean()
    )
