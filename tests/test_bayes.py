"""Best losses: known, or those of surrogates."""

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.bayes import Surrogates
from focusfl.errors import InputError
from focusfl.training import Setup


def test_exact_where_known():
    fed = ff.data.synthetic(seed=0, sigma=[0.1] * 9 + [0.3])
    best = Surrogates().best(Setup.of(ff.FedAvg(), fed, 1))
    assert best.kind == "exact"
    assert torch.allclose(best.loss, torch.tensor([0.01] * 9 + [0.09]))


@pytest.mark.parametrize("kind", ["true", "agent", "learned"])
def test_linear_surrogate_is_least_squares_on_the_pooled_data(kind):
    fed = ff.data.synthetic(seed=1, E=4, outliers=2, n=50)
    learned = torch.tensor([5, 5, 5, 2])  # any names
    groups = {"true": [[0, 1], [2, 3]], "agent": [[0], [1], [2], [3]], "learned": [[0, 1, 2], [3]]}[kind]
    setup = Setup.of(ff.FedAvg(), fed, 60)
    best = Surrogates().best(setup, kind, learned)
    assert best.kind == kind
    for group in groups:
        x = torch.cat([fed.train(e).x for e in group]).double().numpy()
        y = torch.cat([fed.train(e).y for e in group]).double().numpy()
        w = np.linalg.lstsq(x, y, rcond=None)[0]
        for e in group:
            test = fed.test(e)
            loss = float(((test.x.double().numpy() @ w - test.y.double().numpy()) ** 2).mean())
            assert abs(best.loss[e].item() - loss) < 1e-4


def test_methods_on_the_same_data_share_one_surrogate(ragged, tmp_path):
    trained = []
    for surrogates in (Surrogates(tmp_path), Surrogates(tmp_path)):  # the second knows only the file
        for method in (ff.FedAvg(), ff.Focus(M=2), ff.Local()):
            best = surrogates.best(Setup.of(method, ragged, 3), watch=trained.append)
            assert best.kind == "true"
    assert len(trained) == 3  # three rounds, once
    assert len(list(tmp_path.glob("*.json"))) == 1
    surrogates.best(Setup.of(ff.FedAvg(), ragged, 3, seed=1), watch=trained.append)
    assert len(trained) == 6


def test_the_surrogate_of_an_agent_is_local_training(ragged):
    alone = ff.fit(ff.Local(), ragged, rounds=3, bayes="agent")
    assert alone.excess_risk.abs().max() == 0 and alone.faa == 0


def test_what_is_not_known_is_refused(ragged):
    fed = ff.Federation.from_agents([(d.x, d.y) for d in map(ragged.train, range(5))], model=ragged.recipe.model)
    with pytest.raises(InputError, match="exact"):
        ff.fit(ff.FedAvg(), fed, rounds=1, bayes="exact")
    with pytest.raises(InputError, match="true"):
        ff.fit(ff.FedAvg(), fed, rounds=1, bayes="true")
    assert ff.fit(ff.FedAvg(), fed, rounds=1).best.kind == "agent"
    assert ff.fit(ff.FedAvg(), fed, rounds=1).ari is None
