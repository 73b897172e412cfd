"""Shifts make agents differ."""

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.data import shift
from focusfl.util.errors import InputError


@pytest.fixture(scope="module")
def fed():
    rng = np.random.default_rng(0)
    agents = [(np.arange(400.0)[:, None] + 1000 * e, rng.integers(0, 5, 400)) for e in range(6)]
    return ff.Federation.from_agents(agents, test=0.25, clusters=[0, 0, 0, 0, 1, 1], classes=5)


def everything(fed, part):
    rows = getattr(fed, part)
    return sorted(zip(rows.x[:, 0].tolist(), rows.y.tolist(), strict=True))


def test_label_noise_hits_a_share_p_of_the_named_agents_only(fed):
    noisy = shift.label_noise(fed, [1, 5], p=0.4)
    for e in range(6):
        changed = (noisy.train(e).y != fed.train(e).y).float().mean().item()
        assert torch.equal(noisy.train(e).x, fed.train(e).x)
        assert abs(changed - 0.4) < 0.12 if e in (1, 5) else changed == 0  # sd sqrt(.24/300) = 0.028
    assert noisy.clusters.tolist() == [0, 2, 0, 0, 1, 3]
    every = shift.label_noise(fed, [0], p=1.0)
    assert (every.train(0).y != fed.train(0).y).all()


def test_free_riders_have_random_labels(fed):
    riders = shift.free_riders(fed, [2])
    agree = (riders.train(2).y == fed.train(2).y).float().mean().item()
    assert abs(agree - 0.2) < 0.12
    assert riders.test(2).y.tolist() != fed.test(2).y.tolist() and torch.equal(riders.train(1).y, fed.train(1).y)


def test_feature_noise_has_standard_deviation_sigma(fed):
    blurred = shift.feature_noise(fed, [0], sigma=2.0)
    assert abs((blurred.train(0).x - fed.train(0).x).std().item() - 2) < 0.3
    assert torch.equal(blurred.train(3).x, fed.train(3).x)


def test_unequal_sizes_span_the_ratio(fed):
    sizes = shift.unequal(fed, ratio=10).training.sizes
    assert sizes.max() == 300 and sizes.min() == 30 and len(sizes.unique()) == 6


@pytest.mark.parametrize("kind", [shift.tiny, shift.duplicates])
def test_few_examples_of_the_named_agents_and_nothing_else_changes(fed, kind):
    few = kind(fed, [1, 5], n=7)
    for e in range(6):
        before, after = (
            {*zip(d.x[:, 0].tolist(), d.y.tolist(), strict=True)} for d in (fed.train(e), few.train(e))
        )
        assert (len(after) == 7 and after < before) if e in (1, 5) else after == before
        assert torch.equal(few.test(e).x, fed.test(e).x) and torch.equal(few.test(e).y, fed.test(e).y)
    assert few.clusters.tolist() == fed.clusters.tolist()


def test_duplicates_hide_how_few_they_are(fed):
    assert shift.tiny(fed, [2]).training.sizes.tolist() == [300, 300, 5, 300, 300, 300]
    many = shift.duplicates(fed, [2], n=7)
    assert many.training.sizes.tolist() == [300] * 6
    assert (
        sorted(many.train(2).x[:, 0].unique(return_counts=True)[1].tolist()) == [42] + [43] * 6
    )  # 300 = 6 x 43 + 42
    assert shift.tiny(fed, [2], n=1000).training.sizes[2] == 300  # it has no more than that


@pytest.mark.parametrize("alpha", [0.05, 1.0, 100.0])
def test_dirichlet_deals_every_example_once_within_its_cluster(fed, alpha):
    dealt = shift.dirichlet(fed, alpha)
    for part in ("training", "testing"):
        assert everything(dealt, part) == everything(fed, part)
        assert getattr(dealt, part).sizes.min() >= 1
    assert all((dealt.train(e).x < 4000).all() for e in range(4))  # agents 0-3 are cluster 0
    assert (dealt.train(5).x >= 4000).all()


@pytest.mark.parametrize("alpha", [0.01, 1e-4])
def test_so_small_an_alpha_that_shares_vanish_still_deals_everything(fed, alpha):
    for seed in range(20):
        dealt = shift.dirichlet(fed, alpha, seed)
        for part in ("training", "testing"):
            assert everything(dealt, part) == everything(fed, part)
        assert (dealt.train(5).x >= 4000).all()


def test_small_alpha_skews_labels_more(fed):
    def largest_share(alpha):
        counts = [shift.dirichlet(fed, alpha, seed=s).train(0).y.bincount().float() for s in range(20)]
        return np.mean([(c.max() / c.sum()).item() for c in counts])

    assert largest_share(0.1) > 0.5 > largest_share(100.0)


def test_shifts_compose_and_repeat_with_the_seed(fed):
    def made(seed):
        return shift.feature_noise(shift.label_noise(fed, [0], 0.3, seed), [1], 0.5, seed)

    assert made(1).fingerprint == made(1).fingerprint != made(2).fingerprint
    assert made(1).name == "own+label-noise+feature-noise"


def test_options_out_of_range_are_refused(fed):
    for call, message in (
        (lambda: shift.label_noise(fed, [6], 0.1), "shift.agents"),
        (lambda: shift.label_noise(fed, [0], 1.1), "shift.p"),
        (lambda: shift.label_noise(ff.data.synthetic(), [0], 0.1), "no classes"),
        (lambda: shift.dirichlet(fed, 0.0), "shift.alpha"),
        (lambda: shift.unequal(fed, 0.5), "shift.ratio"),
        (lambda: shift.tiny(fed, [0], 0), "shift.n"),
        (lambda: shift.duplicates(fed, [6]), "shift.agents"),
        (lambda: shift.label_noise(fed, [0], 0.1, seed=-1), "shift.seed = -1"),
        (lambda: shift.unequal(fed, 2, seed=-1), "shift.seed"),
        (lambda: shift.tiny(fed, [0], seed=-1), "shift.seed"),
        (lambda: shift.dirichlet(fed, 1.0, seed=-1), "shift.seed"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_an_experiment_can_have_shifts():
    from focusfl.run.experiment import Experiment

    base = {"data": "rotated-digits", "algorithms": ["fedavg"]}
    experiment = Experiment.parse({**base, "shift": [{"kind": "free-riders", "agents": [0, 1]}]})
    assert experiment.federation(0).clusters.tolist() == [3, 3, 0, 0, 0, 0, 0, 1, 1, 2]
    few = Experiment.parse({**base, "shift": [{"kind": "tiny", "agents": [0], "n": 3}]}).federation(0)
    assert few.training.sizes[0] == 3 and few.clusters.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 2]
    for table, message in (
        ({"kind": "free-rider"}, "'free-riders'"),
        ({"kind": "label-noise", "agents": [0]}, "shift.p"),
        ({"kind": "label-noise", "agents": [0], "q": 1}, "shift.q"),
    ):
        with pytest.raises(InputError, match=message):
            Experiment.parse({**base, "shift": [table]})
