"""`Focus.algorithm1(M)` is exactly the paper's Algorithm 1: plain numpy gives the same numbers."""

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.run.loop import run
from focusfl.run.setup import Setup

E, M, K, T, ETA, D = 9, 3, 4, 12, 0.1, 5


def linear_agents():
    """Three clusters of three agents, each with its own number of examples."""
    rng = np.random.default_rng(0)
    centres = 0.5 * rng.normal(size=(M, D))
    agents, tests = [], []
    for e in range(E):
        for n, into in ((20 + 3 * e, agents), (15, tests)):
            x = (0.7 * rng.normal(size=(n, D))).astype("float32")
            y = x @ (centres[e % M] + 0.05 * rng.normal(size=D)) + 0.1 * rng.normal(size=n)
            into.append((x, y.astype("float32")))
    return agents, tests


def algorithm1(agents, tests, w):
    """Chu et al. 2023, Algorithm 1, with squared error and linear models w [M, D]; in double precision."""
    pi = np.full((E, M), 1 / M)
    for _ in range(T):
        loss = np.array([[((x @ w[m] - y) ** 2).mean() for m in range(M)] for x, y in agents])
        pi = pi * np.exp(-loss)  # E step, eq. 8
        pi /= pi.sum(1, keepdims=True)
        theta = np.empty((E, M, D))
        for e, (x, y) in enumerate(agents):  # M step, eqs. 4-5
            for m in range(M):
                theta[e, m] = w[m]
                for _ in range(K):
                    theta[e, m] -= ETA * 2 * x.T @ (x @ theta[e, m] - y) / len(y)
        w = np.einsum("em,emd->md", pi, theta) / pi.sum(0)[:, None]  # eq. 6
    predictions = [sum(pi[e, m] * (x @ w[m]) for m in range(M)) for e, (x, _) in enumerate(tests)]  # eq. 7
    return pi, w, predictions


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_algorithm1_equals_the_algorithm_of_the_paper(engine):
    agents, tests = linear_agents()
    model = lambda: torch.nn.Linear(D, 1, bias=False)  # noqa: E731
    fed = ff.Federation.from_agents(agents, test=tests, model=model)
    options = {"train": ff.Train(lr=ETA, steps=K), "rounds": T, "engine": engine}
    setup = Setup.of(ff.Focus.algorithm1(M), fed, **options)
    first = setup.start()[0]["w"]["weight"][:, 0].double().numpy()
    assert len(np.unique(first.round(4), axis=0)) == M  # independent networks
    pi, w, predictions = algorithm1(agents, tests, first)
    *_, last = run(setup)
    assert np.abs(last.pi.numpy() - pi).max() < 1e-6
    assert np.abs(last.server["w"]["weight"][:, 0].numpy() - w).max() < 1e-6
    result = ff.fit(ff.Focus.algorithm1(M), fed, bayes="none", **options)
    for e, (x, _) in enumerate(tests):
        assert np.abs(result.predict(e, x).numpy() - predictions[e]).max() < 1e-6
    assert pi.max(1).min() > 0.5 and len(set(pi.argmax(1))) > 1  # labels moved, and not all the same way


def test_focus_algorithm1_by_name():
    from focusfl.run.experiment import Experiment

    experiment = Experiment.parse({"data": "synthetic", "algorithms": ["focus-algorithm1:M=4"]})
    assert experiment.algorithm("focus-algorithm1:M=4") == ff.Focus.algorithm1(4)
