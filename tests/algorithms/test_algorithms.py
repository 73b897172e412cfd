"""FOCUS, FedAvg and Local: facts from their definitions."""

import math
from functools import partial

import pytest
import torch
from helpers.federations import make_ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import focusfl as ff
from focusfl.algorithms.focus.focus import e_step
from focusfl.core import Upload
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

losses = st.lists(st.floats(0, 1000), min_size=2, max_size=5).map(torch.tensor)


def last_round(algorithm, fed, rounds=5, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, **options))
    return done


# --- the E step, eq. 8


def test_e_step_by_hand():
    # pi = (1/4, 3/4), losses (ln 2, ln 4): 1/4 * 1/2 : 3/4 * 1/4 = 2 : 3
    pi = e_step(torch.tensor([0.25, 0.75]).log(), torch.tensor([math.log(2), math.log(4)])).exp()
    assert torch.allclose(pi, torch.tensor([0.4, 0.6]))


@given(losses)
def test_labels_are_probabilities_and_prefer_the_smaller_loss(values):
    M = len(values)
    pi = e_step(torch.full((M,), -math.log(M)), values).exp()
    assert abs(pi.sum().item() - 1) < 1e-5
    assert pi[values.argmin()] == pi.max()


@given(losses, st.floats(-50, 50))
def test_labels_ignore_a_loss_that_all_models_share(values, shift):
    start = torch.zeros(len(values))
    assert torch.allclose(e_step(start, values), e_step(start, values + shift), atol=1e-2)


def test_a_label_of_1e_300_can_recover():
    log_pi = torch.tensor([0.0, -300 * math.log(10)])
    for _ in range(400):
        log_pi = e_step(log_pi, torch.tensor([2.0, 0.0]))  # 800 > 690.8 = 300 ln 10
    assert log_pi.exp()[1] > 0.99


# --- FOCUS, one agent by hand


class FixedLosses:
    """An agent with fixed losses whose training adds 1 to every weight."""

    n = torch.tensor(5.0)

    def __init__(self, losses):
        self._losses = torch.tensor(losses)

    def losses(self, w, estimate=None):
        return self._losses

    def sgd(self, w, pull=None, only=None):
        trained = torch.ones(len(self._losses), dtype=torch.bool) if only is None else only
        return {k: v + trained.float()[:, None] for k, v in w.items()}


def test_focus_upload_and_aggregate_by_hand():
    focus = ff.Focus(M=2, init="tied", prune=0.0)
    server = {"w": {"a": torch.tensor([[1.0], [10.0]])}}
    uploads = []
    for losses in ([0.0, math.log(3)], [math.log(3), 0.0]):  # labels (3/4, 1/4) and (1/4, 3/4)
        _state, upload = focus.local(server, focus.enroll(server), FixedLosses(losses))
        uploads.append(upload)
        assert not upload.each  # the server never sees one agent's label
    assert torch.allclose(uploads[0].add["pi"], torch.tensor([0.75, 0.25]))
    assert torch.allclose(uploads[0].add["theta"]["a"], torch.tensor([[1.5], [2.75]]))
    add = {"theta": {"a": sum(u.add["theta"]["a"] for u in uploads)}, "pi": sum(u.add["pi"] for u in uploads)}
    after = focus.aggregate(server, add, {}, torch.arange(2))
    assert torch.allclose(after["w"]["a"], torch.tensor([[2.0], [11.0]]))


def test_pruned_models_are_not_trained():
    focus = ff.Focus(M=2, init="tied", prune=0.01)
    server = {"w": {"a": torch.tensor([[1.0], [10.0]])}}
    _, upload = focus.local(server, focus.enroll(server), FixedLosses([0.0, 50.0]))
    share = upload.add["pi"]
    assert torch.allclose(upload.add["theta"]["a"][1], 10 * share[1])  # returned unchanged
    assert torch.allclose(upload.add["theta"]["a"][0], 2 * share[0])


def test_a_label_from_an_estimated_loss_does_not_recover_within_one_round():
    """A model has a tiny label; by chance its estimated loss is 1,000 lower. In the next round its loss is computed
    on all examples, and the label stays tiny."""
    focus = ff.Focus(M=2, init="tied")
    server = {"w": {"a": torch.zeros(2, 1)}}
    limit = math.log(focus.prune) - 20
    state, upload = focus.local(server, {"log_pi": torch.tensor([0.0, -40.0])}, FixedLosses([1000.0, 0.0]))
    assert state["log_pi"].tolist() == pytest.approx([0, limit + 1], abs=1e-3)
    assert upload.add["theta"]["a"][1] == 0  # not trained
    state, _ = focus.local(server, state, FixedLosses([5.0, 8.0]))
    assert state["log_pi"].tolist() == pytest.approx([0, limit - 2], abs=1e-3)


def test_weight_by_n_counts_examples():
    server = {"w": {"a": torch.zeros(1, 1)}}
    _, upload = ff.Focus(M=1, init="tied", weight_by_n=True).local(
        server, {"log_pi": torch.zeros(1)}, FixedLosses([0.3])
    )
    assert upload.add["pi"].item() == 5


def test_mixture_prediction_by_hand():
    state = {"log_pi": torch.tensor([0.25, 0.75]).log()}
    p = ff.Focus(M=2, init="tied").predict(
        {"w": {}}, state, lambda w, only: torch.tensor([[[1.0, 0.0]], [[0.2, 0.8]]])
    )
    assert torch.allclose(p, torch.tensor([[0.4, 0.6]]))


def test_the_label_of_a_new_agent():
    _view, state = ff.Focus(M=2, init="tied").assign({"w": {}}, FixedLosses([math.log(1.0), math.log(4.0)]))
    assert torch.allclose(state["log_pi"].exp(), torch.tensor([0.8, 0.2]))


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_focus_with_one_cluster_is_fedavg(engine):
    fed = make_ragged(sizes=(20, 20, 20, 20, 20))
    one = last_round(ff.Focus(M=1), fed, engine=engine).server["w"]
    other = last_round(ff.FedAvg(), fed, engine=engine).server["w"]
    for k in one:
        assert torch.allclose(one[k], other[k], atol=1e-6)


@pytest.mark.parametrize("by_n", [True, False])
def test_ragged_focus_with_one_cluster_is_fedavg_with_the_same_weights(ragged, by_n):
    one = last_round(ff.Focus(M=1, weight_by_n=by_n), ragged).server["w"]
    other = last_round(ff.FedAvg(weight_by_n=by_n), ragged).server["w"]
    different = last_round(ff.FedAvg(weight_by_n=not by_n), ragged).server["w"]
    assert all(torch.allclose(one[k], other[k], atol=1e-6) for k in one)
    assert not all(torch.allclose(one[k], different[k], atol=1e-4) for k in one)


def test_tied_start_is_one_network_with_small_noise(ragged):
    networks = Setup.of(ff.FedAvg(), ragged, 1).networks
    one = networks.copies(1)
    tied = networks.copies(3, noise=0.01)
    for k, v in tied.items():
        assert torch.equal(v[0], one[k][0])
        spread = (v[1:] - v[0]).std() / one[k].std(correction=0)
        assert 0.004 < spread < 0.02
    independent = networks.independent(3)
    assert torch.equal(independent["1.weight"][0], one["1.weight"][0])
    assert (independent["1.weight"][1] - independent["1.weight"][0]).std() > 0.1


def test_tied_copies_differ_even_where_all_tensors_are_constant():
    agents = [([[1.0], [2.0]], [s, 2 * s]) for s in (1.0, 1.0, -1.0)]
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    fed = ff.Federation.from_agents(agents, test=agents, clusters=[0, 0, 1])
    result = ff.fit(ff.Focus(M=2), fed, model=network, rounds=150, train=ff.Train(lr=0.05))
    assert result.ari == 1


def test_the_same_seed_gives_the_same_weights_and_keeps_the_global_random_state(ragged):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b = (Setup.of(ff.FedAvg(), ragged, 1, seed=3).networks.copies(2, 0.1) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a[k], b[k]) for k in a)
    other = Setup.of(ff.FedAvg(), ragged, 1, seed=4).networks.copies(2, 0.1)
    assert not torch.equal(a["1.weight"], other["1.weight"])


@pytest.mark.parametrize(
    "wrong", [{"M": 0}, {"M": -1}, {"M": 3.0}, {"init": "magic"}, {"noise": -1.0}, {"prune": 0.5}]
)
def test_focus_refuses_invalid_options(wrong):
    with pytest.raises(InputError, match=f"focus.{next(iter(wrong))}"):
        ff.Focus(**wrong)


def test_independent_start_of_one_given_network_is_refused(ragged):
    with pytest.raises(InputError, match="function"):
        ff.fit(ff.Focus(M=2, init="independent"), ragged, model=ff.models.mlp(6, 8, 3), rounds=1)


# --- FedAvg


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_fedavg_on_one_weight_by_hand(engine):
    # agent 0: x = 1, y = 1, one example; agent 1: x = 1, y = 4, three examples. w = 0, squared loss, lr 0.1:
    # one step gives 0.2 and 0.8; the mean weighted by examples is (0.2 + 3 * 0.8) / 4 = 0.65
    agents = [([[1.0]], [1.0]), ([[1.0]] * 3, [4.0] * 3)]
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    fed = ff.Federation.from_agents(agents, test=agents)
    done = last_round(
        ff.FedAvg(weight_by_n=True), fed, 1, model=network, train=ff.Train(lr=0.1, steps=1), engine=engine
    )
    assert abs(done.server["w"]["weight"].item() - 0.65) < 1e-6


def test_fedavg_uploads_sums_only(ragged):
    fedavg = ff.FedAvg()
    server = {"w": {"a": torch.zeros(1, 1)}}
    _, upload = fedavg.local(server, {}, FixedLosses([0.0]))
    assert upload == Upload(add={"theta": {"a": torch.full((1, 1), 5.0)}, "n": torch.tensor(5.0)}, each={})


# --- Local against the optimisers of torch


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize(
    ("train", "optimiser"),
    [
        ({"momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9)),
        ({"optimiser": "adamw"}, torch.optim.AdamW),
        ({"optimiser": "adam"}, torch.optim.Adam),
        ({"optimiser": "rmsprop"}, torch.optim.RMSprop),
    ],
    ids=["sgd", "adamw", "adam", "rmsprop"],
)
def test_local_equals_the_optimisers_of_torch(ragged, engine, train, optimiser):
    options = ff.Train(lr=0.05, steps=3, weight_decay=0.01, **train)
    done = last_round(ff.Local(), ragged, 4, train=options, engine=engine)
    network = Setup.of(ff.Local(), ragged, 4).networks.network()
    x, y = ragged.train(3)
    for _ in range(4):  # the optimiser's memory starts over each round
        theirs = optimiser(network.parameters(), lr=0.05, weight_decay=0.01)
        for _ in range(3):
            theirs.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            theirs.step()
    for k, v in network.state_dict().items():
        assert torch.allclose(done.states["w"][k][3, 0], v, atol=1e-5)
