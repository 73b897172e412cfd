"""On a user's own data FedAvg weighs agents as FOCUS does, unless it is asked to weigh them by their examples."""

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.algorithms import Adapted, with_common_weights
from focusfl.run.experiment import Experiment
from focusfl.run.identity import fingerprint
from focusfl.run.setup import Setup

METHODS = [ff.FedAvg, ff.FedProx, ff.FedEM, ff.FedSoft, ff.HardCluster]


def own(sizes=(10, 40)):
    rng = np.random.default_rng(0)
    return ff.Federation.from_agents([(x := rng.normal(size=(n, 2)), (x[:, 0] > 0).astype(int)) for n in sizes])


def weight(algorithm, fed):
    decided = Setup.of(algorithm, fed, 1).algorithm
    return (decided.inner if isinstance(decided, Adapted) else decided).weight_by_n


@pytest.mark.parametrize("method", METHODS)
def test_own_data_weigh_alike_and_the_papers_by_examples(method):
    assert weight(method(), own()) is False and weight(method(weight_by_n=True), own()) is True
    assert weight(method(), ff.data.rotated_digits(seed=0)) is None  # as the paper says: by n
    assert weight(Adapted(method()), own()) is False


@pytest.mark.parametrize("method", METHODS)
def test_runs_of_older_releases_are_the_same_runs(method):
    assert "weight_by_n" not in repr(method()) and "weight_by_n=False" in repr(method(weight_by_n=False))


def test_the_weights_are_part_of_a_runs_identity():
    fed = own()
    alike, by_n = (Setup.of(ff.FedAvg(weight_by_n=w), fed, 1) for w in (False, True))
    assert fingerprint(alike) != fingerprint(by_n) and fingerprint(alike) == fingerprint(
        Setup.of(ff.FedAvg(), fed, 1)
    )


def test_uploads_by_hand():
    class Agent:
        n = torch.tensor(5.0)

        def sgd(self, w):
            return {k: v + 1 for k, v in w.items()}

    server = {"w": {"a": torch.zeros(1, 1)}}
    for by_n, expected in ((None, 5.0), (True, 5.0), (False, 1.0)):
        fedavg = ff.FedAvg(weight_by_n=by_n)
        _, upload = fedavg.local(server, {}, Agent())
        assert float(upload.add["n"]) == expected and float(upload.add["theta"]["a"]) == expected
        total = fedavg.contribution(server, upload, torch.tensor(15.0), agents=3).total
        assert float(total) == (3.0 if by_n is False else 15.0)


def test_methods_that_are_compared_follow_focus():
    def weights(*methods):
        return [method.weight_by_n for method in with_common_weights(methods)]

    assert weights(ff.Focus(), ff.FedAvg(), ff.FedProx()) == [False, None, None]
    assert weights(ff.Focus(weight_by_n=True), ff.FedAvg(), ff.FedEM(weight_by_n=False)) == [True, True, False]
    assert weights(ff.FedAvg(weight_by_n=True), ff.FedAvg()) == [True, None]
    compared = {"data": {"name": "synthetic"}, "algorithms": ["focus", "fedavg"], "focus": {"weight_by_n": True}}
    assert Experiment.parse(compared).setups(0)["fedavg"].algorithm.weight_by_n is True
