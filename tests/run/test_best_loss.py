"""Best losses: known, or those of surrogates."""

from functools import partial

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.run.best_loss import Surrogates
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError, Interrupted


def test_exact_where_known():
    fed = ff.data.synthetic(seed=0, sigma=[0.1] * 9 + [0.3])
    best = Surrogates().best(Setup.of(ff.FedAvg(), fed, 1))
    assert best.kind == "exact"
    assert torch.allclose(best.loss, torch.tensor([0.01] * 9 + [0.09]))


def test_without_a_best_loss_excess_risk_is_the_loss(ragged):
    result = ff.fit(ff.FedAvg(), ragged, rounds=1, bayes="none")
    assert result.best.kind == "none" and torch.equal(result.excess_risk, result.loss)


@pytest.mark.parametrize("kind", ["true", "agent", "learned"])
def test_linear_surrogate_is_least_squares_on_the_pooled_data(kind):
    fed = ff.data.synthetic(seed=1, E=4, outliers=2, n=50)
    learned = torch.tensor([5, 5, 5, 2])  # any numbers
    groups = {"true": [[0, 1], [2, 3]], "agent": [[0], [1], [2], [3]], "learned": [[0, 1, 2], [3]]}[kind]
    setup = Setup.of(ff.FedAvg(), fed, 60, bayes=kind)
    best = Surrogates().best(setup, learned)
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
    for surrogates in (Surrogates(tmp_path), Surrogates(tmp_path)):  # the second has only the file
        for method in (ff.FedAvg(), ff.Focus(M=2), ff.Local()):
            best = surrogates.best(Setup.of(method, ragged, 3), watch=trained.append)
            assert best.kind == "true"
    assert len(trained) == 3  # three rounds, once
    assert len(list(tmp_path.glob("*.json"))) == 1
    surrogates.best(Setup.of(ff.FedAvg(), ragged, 3, seed=1), watch=trained.append)
    assert len(trained) == 6


def test_an_interrupted_surrogate_is_resumed(ragged, tmp_path):
    setup, seen = Setup.of(ff.FedAvg(), ragged, 6), []
    whole = Surrogates().best(setup)
    with pytest.raises(Interrupted):
        Surrogates(tmp_path).best(setup, watch=lambda r: seen.append(r.t), stop=lambda: len(seen) >= 3)
    resumed = Surrogates(tmp_path).best(setup, watch=lambda r: seen.append(r.t))
    rounds = [t for i, t in enumerate(seen) if i == 0 or t != seen[i - 1]]
    assert rounds == [1, 2, 3, 4, 5, 6]  # none twice
    assert torch.equal(resumed.loss, whole.loss)
    stored = sorted(path.suffix for path in tmp_path.iterdir())
    assert stored == [".json", ".lock", ".safetensors"]  # and nothing else
    assert torch.equal(resumed.examples, whole.examples)


def test_the_surrogate_of_an_agent_is_local_training(ragged):
    alone = ff.fit(ff.Local(), ragged, rounds=3, bayes="agent")
    assert alone.excess_risk.abs().max() == 0 and alone.faa == 0


def test_frozen_weights_and_attributes_change_the_fingerprint(ragged):
    class Scaled(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor, self.layer = factor, torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x * self.factor)

    one, other = (Setup.of(ff.Local(), ragged, 2, model=partial(Scaled, k)).fingerprint for k in (1.0, 0.0))
    assert one != other
    frozen = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))
    frozen[0].requires_grad_(False)
    before = Setup.of(ff.Local(), ragged, 2, model=frozen).fingerprint
    with torch.no_grad():
        frozen[0].weight.zero_()
    assert Setup.of(ff.Local(), ragged, 2, model=frozen).fingerprint != before


def test_a_surrogate_that_diverges_is_named():
    fed = ff.data.synthetic(n=8, n_test=50)
    with pytest.raises(Diverged, match="smaller"):
        ff.fit(ff.FedAvg(), fed, rounds=60, bayes="agent", train=ff.Train(lr=0.35, steps=3))


def test_surrogates_train_on_all_the_data_with_any_fraction(ragged):
    a, b = (Surrogates().best(Setup.of(ff.FedAvg(), ragged, 3, fraction=f)).loss for f in (1.0, 0.4))
    assert torch.equal(a, b)


def test_best_losses_that_the_data_cannot_give_are_refused(ragged):
    fed = ff.Federation.from_agents([(d.x, d.y) for d in map(ragged.train, range(5))], model=ragged.recipe.model)
    with pytest.raises(InputError, match="exact"):
        ff.fit(ff.FedAvg(), fed, rounds=1, bayes="exact")
    with pytest.raises(InputError, match="true"):
        ff.fit(ff.FedAvg(), fed, rounds=1, bayes="true")
    found = ff.fit(ff.FedAvg(), fed, rounds=1)
    assert found.best.kind == "validated" and found.ari is None
    tiny = ff.Federation.from_agents([([[0.0], [1.0]], [0, 1]), ([[2.0], [3.0]], [1, 0])], test=0.5)
    with pytest.raises(InputError, match="agent"):
        ff.fit(ff.FedAvg(), tiny, rounds=1, bayes="validated")
    assert ff.fit(ff.FedAvg(), tiny, rounds=1, validation=0).best.kind == "agent"
