"""PFNM and FedMA match copies of a neuron, keep others separate, and average each class by its examples."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.algorithms import dense_layers, matching
from focusfl.algorithms.fedma import FedMA
from focusfl.algorithms.local import Local
from focusfl.algorithms.matching import Atoms, MatchOptions
from focusfl.algorithms.pfnm import PFNM
from focusfl.core.tree import flatten, tree_map
from focusfl.engines import ENGINES
from focusfl.engines.one_agent import predictor
from focusfl.models import linear, mlp
from focusfl.models.task import Task, shared_weights
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import CannotRun, Diverged, InputError

TRAIN = ff.Train(lr=0.1, steps=5, batch=8)
both = pytest.mark.parametrize("algorithm", [PFNM(), FedMA()], ids=["pfnm", "fedma"])
every_engine = pytest.mark.parametrize("engine", list(ENGINES))


class Stepping:
    """An agent whose training adds `step` to every weight that is not frozen."""

    def __init__(self, counts, step=0.0):
        self.counts, self.n, self.step = torch.tensor(counts), torch.tensor(sum(counts)), step

    def sgd(self, w, freeze=()):
        self.frozen = set(freeze)
        return {k: v + self.step * (k not in freeze) for k, v in w.items()}

    def class_counts(self):
        return self.counts


class FixedNetwork:
    """Implements core.Networks with one given network."""

    def __init__(self, w):
        self.w = w

    def copies(self, M):
        return self.w


def stack_of_one(network):
    return {k: v.unsqueeze(0) for k, v in shared_weights(network).items()}


def after_rounds(algorithm, models, counts, rounds=1, absent=()):
    """The states of server and agents after some rounds with these models; `absent`: (round, agent) pairs."""
    server = algorithm.start(FixedNetwork(models[0]), len(models))
    states = [{"v": v} for v in models]
    for t in range(rounds):
        cohort = [e for e in range(len(models)) if (t, e) not in absent]
        each = []
        for e in cohort:
            view = algorithm.downlink(server, torch.tensor(e))
            states[e], upload = algorithm.local(view, states[e], Stepping(counts[e]))
            each.append(upload.each)
        rows = tree_map(lambda *vs: torch.stack(vs), *each)
        server = algorithm.aggregate(server, {}, rows, torch.tensor(cohort))
    return server, states


def distinct_neurons(*sizes, seed=0):
    """A network with long and nearly orthogonal neurons, so that only copies are close to each other."""
    torch.manual_seed(seed)
    w = stack_of_one(mlp(*sizes))
    return {k: torch.randn_like(v) * (6 / v.shape[-1] ** 0.5 if v.dim() == 3 else 1) for k, v in w.items()}


def permuted(w, seed):
    """The same function with the hidden neurons in another order."""
    rng, out = torch.Generator().manual_seed(seed), dict(w)
    for (weight, bias), (above, _) in itertools.pairwise(zip(list(w)[::2], list(w)[1::2], strict=True)):
        p = torch.randperm(w[bias].shape[1], generator=rng)
        out[weight], out[bias], out[above] = out[weight][:, p], out[bias][:, p], out[above][:, :, p]
    return out


def outputs(w, x, hidden=nn.ReLU):
    """The outputs of a chain of fully connected layers, by its definition."""
    layers = list(zip(list(w.values())[::2], list(w.values())[1::2], strict=True))
    for i, (W, b) in enumerate(layers):
        x = x @ W[0].T + b[0]
        x = hidden()(x) if i < len(layers) - 1 else x
    return x


def by_first_column(rows):
    return rows[rows[:, 0].argsort()]


def test_gains_by_hand():
    # v = 1 with s = 1; one atom with S = 3, P = 2, m = 2 of J = 3; prior mean 0.5 and precision 2; gamma = 6
    # atom: (1 + 3)^2 / 3 - 9 / 2 + log(2 / 1);  k-th new: (1 + 1)^2 / 3 - 1 / 2 - 2 log k + 2 log(6 / 3)
    options = MatchOptions(np.array([0.5]), 2.0, gamma=6.0, it=0, limit=700)
    atoms = Atoms(np.array([[3.0]]), np.array([[2.0]]), np.array([2]))
    gains = matching.gains(np.array([[1.0], [1.0]]), np.array([1.0]), atoms, 3, options)
    log2 = math.log(2)
    assert np.allclose(gains, [[5 / 6 + log2, 5 / 6 + 2 * log2, 5 / 6]] * 2)


def test_gains_follow_the_formula_and_large_atoms_count_as_ten_neurons():
    rng = np.random.default_rng(0)
    v, s, mu0, p0, J = rng.normal(size=(4, 6)), rng.uniform(0.1, 1, 6), rng.normal(size=6), 0.7, 30
    S, P, m = rng.normal(size=(9, 6)), rng.uniform(1, 3, (9, 6)), np.array([1, 2, 3, 9, 10, 11, 20, 28, 29])
    gains = matching.gains(v, s, Atoms(S, P, m), J, MatchOptions(mu0, p0, 1.5, 0, 12))
    assert gains.shape == (4, 9 + 3)  # 12 - 9 new atoms
    for l, i in itertools.product(range(4), range(9)):
        gain = sum((s[d] * v[l, d] + S[i, d]) ** 2 / (s[d] + P[i, d]) - S[i, d] ** 2 / P[i, d] for d in range(6))
        capped = min(m[i], 10)
        assert abs(gains[l, i] - gain - math.log(capped / (J - capped))) < 1e-10
    for l, k in itertools.product(range(4), range(1, 4)):
        gain = sum((s[d] * v[l, d] + mu0[d] * p0) ** 2 / (s[d] + p0) - mu0[d] ** 2 * p0 for d in range(6))
        assert abs(gains[l, 8 + k] - gain + 2 * math.log(k) - 2 * math.log(1.5 / J)) < 1e-10


COUNTS = [[3.0, 1.0, 2.0], [1.0, 3.0, 1.0]]


def test_pfnm_of_a_network_and_its_permuted_copy_is_that_network_shrunk_to_the_prior():
    net = distinct_neurons(6, 5, 3)
    server, _ = after_rounds(PFNM(), [net, permuted(net, 1)], COUNTS)
    assert server["width"] == 5
    W1, b1, W2, b2 = (v[0] for v in dense_layers.resize(server["w"], [5]).values())
    # S / P with two neurons of precision 1, and shares of W2 that add up to 1
    expected = torch.hstack([2 * net["1.weight"][0] / 3, (2 * net["1.bias"].T + 0.1) / 3, net["3.weight"][0].T / 2])
    found = torch.hstack([W1, b1[:, None], W2.T])
    assert torch.allclose(by_first_column(found), by_first_column(expected), atol=1e-6)
    assert torch.allclose(b2, (net["3.bias"][0] + 0.1) / 2)


def test_pfnm_with_a_weak_prior_returns_the_network():
    net, x = distinct_neurons(6, 5, 3), torch.randn(20, 6)
    server, _ = after_rounds(
        PFNM(sigma0=1e6), [net, permuted(net, 1), permuted(net, 2)], [*COUNTS, [2.0, 2.0, 2.0]]
    )
    assert server["width"] == 5
    found = torch.hstack([server["w"]["1.weight"][0], server["w"]["1.bias"].T])[:5]
    assert torch.allclose(
        by_first_column(found), by_first_column(torch.hstack([net["1.weight"][0], net["1.bias"].T])), atol=1e-4
    )
    assert torch.allclose(outputs(server["w"], x), outputs(net, x), atol=1e-3)


def test_fedma_of_a_network_and_its_permuted_copy_is_that_network_shrunk_to_the_prior():
    net, x = distinct_neurons(6, 5, 4, 3), torch.randn(20, 6)
    server, _ = after_rounds(FedMA(gamma=1.0), [net, permuted(net, 1)], COUNTS, rounds=3)
    assert server["t"] == 3 and server["width"].tolist() == [5, 4]
    shrunk = dict(net)
    for weight, bias in (("1.weight", "1.bias"), ("3.weight", "3.bias")):
        shrunk[weight], shrunk[bias] = 2 * net[weight] / 3, (2 * net[bias] + 0.1) / 3
    assert torch.allclose(outputs(server["w"], x), outputs(shrunk, x), atol=1e-4)
    first = by_first_column(server["w"]["1.weight"][0, :5])
    assert torch.allclose(first, by_first_column(shrunk["1.weight"][0]), atol=1e-6)


def test_fedma_with_a_weak_prior_returns_the_network():
    net, x = distinct_neurons(6, 5, 4, 3), torch.randn(20, 6)
    server, _ = after_rounds(FedMA(gamma=1.0, sigma0=1e6), [net, permuted(net, 1)], COUNTS, rounds=3)
    assert server["width"].tolist() == [5, 4]
    assert torch.allclose(outputs(server["w"], x), outputs(net, x), atol=1e-3)


@both
def test_different_neurons_are_not_matched(algorithm):
    # neurons along different axes, and no weight above in common
    a, b = distinct_neurons(10, 5, 3), distinct_neurons(10, 5, 3)
    a["1.weight"], b["1.weight"] = 10 * torch.eye(10)[None, :5], 10 * torch.eye(10)[None, 5:]
    server, _ = after_rounds(algorithm, [a, b], COUNTS)
    assert server["width"].item() == 10
    # each atom has one neuron, of precision 1, and the prior, of precision 1
    rows = server["w"]["1.weight"][0, :10]
    assert torch.allclose(rows @ rows.T, 25 * torch.eye(10))


def axes(J, H):
    """J agents whose neurons all point in different directions."""
    return 10 * np.eye(J * H).reshape(J, H, J * H)


@pytest.mark.parametrize(("limit", "it", "L"), [(6, 0, 7), (2, 0, 7), (700, 0, 15), (700, 5, 15)])
def test_more_neurons_than_the_limit_share_atoms(limit, it, L):
    # limit 6: 5 neurons, then max(6 - 5, 1) = 1 new, then max(6 - 6, 1) = 1 new; limit 2: 5, 1 and 1
    options = MatchOptions(np.zeros(15), 1.0, 1.0, it, limit)
    z, atoms = matching.match(axes(3, 5), np.ones((3, 15)), np.array([3.0, 2.0, 1.0]), options)
    assert len(atoms) == L <= matching.max_atoms(3, 5, it, limit)
    assert np.isfinite(atoms).all()
    assert all(len(set(atoms_of_one)) == 5 for atoms_of_one in z.tolist())


@pytest.mark.parametrize(("J", "H", "limit"), [(3, 5, 6), (3, 5, 2), (6, 4, 9), (1, 5, 2), (1, 5, 700), (12, 2, 3)])
def test_atoms_respect_the_bound_all_are_used_and_an_agent_uses_none_twice(J, H, limit):
    rng = np.random.default_rng(J)
    for it, stretch in itertools.product((0, 1, 5), (0.1, 1.0, 3.0, 10.0)):
        v, n = stretch * rng.normal(size=(J, H, 7)), rng.integers(1, 50, J).astype(float)
        z, atoms = matching.match(v, np.ones((J, 7)), n, MatchOptions(np.zeros(7), 1.0, 1.0, it, limit))
        assert set(z.ravel().tolist()) == set(range(len(atoms)))
        assert H <= len(atoms) <= matching.max_atoms(J, H, it, limit)
        assert all(len(set(one)) == H for one in z.tolist())
        for i, theta in enumerate(atoms):  # the posterior mean of its neurons
            own = v[z == i]
            assert np.allclose(theta, own.sum(0) / (1 + len(own)))


def test_the_bound_by_hand():
    assert matching.max_atoms(E=1, H=5, it=5, limit=2) == 5  # alone
    assert matching.max_atoms(E=2, H=3, it=5, limit=700) == 6  # all neurons
    assert matching.max_atoms(E=3, H=5, it=0, limit=6) == 7  # 5, 6, 7
    assert matching.max_atoms(E=3, H=9, it=0, limit=6) == 11  # 9, 10, 11
    assert matching.max_atoms(E=10, H=200, it=5, limit=700) == 700 + 8 + 50  # full after one match; 58 more


def test_the_order_of_the_agents_does_not_change_the_matching():
    rng = np.random.default_rng(0)
    v, n = rng.normal(size=(4, 6, 9)), np.array([5.0, 9.0, 5.0, 7.0])
    s, order = rng.uniform(0.5, 1, (4, 9)), [2, 0, 3, 1]
    options = MatchOptions(np.zeros(9), 1.0, 1.0, 5, 700)
    z, atoms = matching.match(v, s, n, options)
    reordered, same = matching.match(v[order], s[order], n[order], options)
    assert np.array_equal(reordered, z[order]) and np.array_equal(same, atoms)


SEEN = [[3.0, 1.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0]]  # class 1: only the first agent; 2: only the second; 3: none


def two_heads():
    """Two agents with the same hidden layer and different last layers."""
    a, b = distinct_neurons(6, 5, 4), distinct_neurons(6, 5, 4, seed=1)
    return a, {**a, "3.weight": b["3.weight"], "3.bias": b["3.bias"]}


def head_by_hand(a, b, k):
    """3/4 and 1/4 of class 0; class 1 of the first; class 2 of the second; the plain mean of class 3."""
    a, b = a[k][0], b[k][0]
    return torch.stack([0.75 * a[0] + 0.25 * b[0], a[1], b[2], (a[3] + b[3]) / 2])


def test_pfnm_averages_each_class_by_its_examples():
    a, b = two_heads()
    server, _ = after_rounds(PFNM(), [a, b], SEEN)
    assert server["width"] == 5
    first = server["w"]["1.weight"][0, :5]
    rows = [int((first - 2 / 3 * v).norm(dim=1).argmin()) for v in a["1.weight"][0]]
    found = server["w"]["3.weight"][0][:, rows]
    assert torch.allclose(found, head_by_hand(a, b, "3.weight") / 2, atol=1e-6)
    assert torch.allclose(server["w"]["3.bias"][0], (head_by_hand(a, b, "3.bias") + 0.1) / 2)


def test_fedma_averages_each_class_of_the_last_layer_by_its_examples():
    a, b = two_heads()
    server, _ = after_rounds(FedMA(gamma=1.0), [a, b], SEEN, rounds=2)
    assert server["width"].item() == 5
    first = server["w"]["1.weight"][0, :5]
    rows = [int((first - 2 / 3 * v).norm(dim=1).argmin()) for v in a["1.weight"][0]]
    assert torch.allclose(server["w"]["3.weight"][0][:, rows], head_by_hand(a, b, "3.weight"), atol=1e-6)
    assert torch.allclose(server["w"]["3.bias"][0], head_by_hand(a, b, "3.bias"))


def test_padding_a_network_changes_no_output_and_can_be_undone():
    net, x = distinct_neurons(6, 5, 4, 3), torch.randn(20, 6)
    wide = dense_layers.resize(net, [9, 7])
    assert wide["3.weight"].shape == (1, 7, 9)
    assert torch.allclose(outputs(wide, x, nn.Sigmoid), outputs(net, x, nn.Sigmoid), atol=1e-5)
    assert all(torch.equal(v, net[k]) for k, v in dense_layers.resize(wide, [5, 4]).items())


def conv():
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def normed():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("network", "classes", "problem"),
    [
        (mlp(6, 8, 1), None, "regression"),
        (conv(), 3, "1.weight"),
        (normed(), 3, "1.weight"),
        (mlp(6, 3), 3, "no hidden"),
        (linear(6, 3), 3, "1.weight.*bias"),
        (nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)), 3, "0.weight.*bias"),
        (nn.Sequential(nn.Linear(6, 8), nn.GLU(), nn.Linear(4, 3)), 3, "2.weight"),
    ],
    ids=["regression", "conv", "layer norm", "no hidden layer", "linear", "no bias", "no chain"],
)
@both
def test_other_networks_are_refused(algorithm, network, classes, problem):
    with pytest.raises(CannotRun, match=f"^{algorithm.name} .*: found {problem}"):
        task = Task(network, classes)
        algorithm.check(stack_of_one(network), classes, 5, predictor(task, torch.ones(2, 6)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.three(x + torch.relu(self.two(torch.relu(self.one(x)))))


class SoftmaxInside(nn.Sequential):
    """A neuron of zeros would change the softmax."""

    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Softmax(1), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("algorithm", "model"), [(FedMA(), Residual), (PFNM(), SoftmaxInside), (FedMA(), SoftmaxInside)]
)
def test_networks_with_the_right_shapes_that_are_no_chain_are_refused(algorithm, model, ragged):
    with pytest.raises(CannotRun, match="chain"):
        Setup.of(algorithm, ragged, 1, model=model)


def test_pfnm_needs_one_hidden_layer_and_fedma_takes_more(ragged):
    with pytest.raises(CannotRun, match="2 hidden"):
        Setup.of(PFNM(), ragged, 1, model=lambda: mlp(6, 8, 5, 3))
    Setup.of(PFNM(), ragged, 1)
    Setup.of(FedMA(), ragged, 1, model=lambda: mlp(6, 8, 5, 3))


@pytest.mark.parametrize("options", [{"sigma": 0}, {"sigma0": -1}, {"gamma": 0}, {"it": 1.5}, {"limit": 0}])
@pytest.mark.parametrize("kind", [PFNM, FedMA])
def test_invalid_options_are_refused(kind, options):
    with pytest.raises(InputError, match=f"{kind.__name__.lower()}.{next(iter(options))}"):
        kind(**options)


def final(algorithm, fed, engine, rounds=5, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, train=TRAIN, engine=engine, **options))
    return flatten({"server": done.server, "agents": done.states, "loss": done.scores.loss})


@pytest.mark.parametrize("fraction", [1.0, 0.4])
@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [(PFNM(), (8,)), (PFNM(after=3), (8,)), (FedMA(), (8,)), (FedMA(), (8, 5)), (FedMA(), (4, 9, 5))],
)
def test_serial_and_vectorised_agree(algorithm, sizes, fraction, ragged):
    model = lambda: mlp(6, *sizes, 3)  # noqa: E731
    a, b = (final(algorithm, ragged, engine, model=model, fraction=fraction) for engine in ENGINES)
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[k].double(), b[k].double(), rtol=1e-5, atol=1e-5) for k in a)


@every_engine
def test_fedma_freezes_one_layer_per_round_and_then_stops(engine, ragged):
    setup = Setup.of(FedMA(), ragged, 5, model=lambda: mlp(6, 8, 5, 3), train=TRAIN, engine=engine)
    *layers, head = ("1.weight", "3.weight", "5.weight")
    seen = [(done.server, done.scores.loss) for done in run(setup)]
    for t, k in enumerate((*layers, head)):
        before = setup.start()[0] if t == 0 else seen[t - 1][0]
        assert not torch.equal(before["w"][k], seen[t][0]["w"][k])
        assert all(torch.equal(seen[t][0]["w"][k], later["w"][k]) for later, _ in seen[t:])
    assert [int(server["t"]) for server, _ in seen] == [1, 2, 3, 3, 3]
    assert torch.equal(seen[2][1], seen[4][1])


@every_engine
def test_before_the_match_pfnm_is_local_training(engine, ragged):
    alone, matched = (
        [done.scores.loss for done in run(Setup.of(kind, ragged, 4, train=TRAIN, engine=engine))]
        for kind in (Local(), PFNM(after=3))
    )
    for t in (0, 1):
        assert torch.allclose(alone[t], matched[t])
    assert not torch.allclose(alone[2], matched[2], atol=1e-3)
    assert torch.equal(matched[2], matched[3])


@both
@every_engine
def test_in_the_end_all_agents_and_new_agents_have_one_network(algorithm, engine, ragged):
    result = ff.fit(algorithm, ragged, rounds=3, train=TRAIN, engine=engine)
    x, y = ragged.test(0)
    all_of_them = [result.predict(e, x) for e in range(5)] + [result.assign(x, y).predict(x)]
    assert all(torch.equal(all_of_them[0], p) for p in all_of_them)


def test_an_agent_that_misses_a_layer_of_fedma_keeps_its_network_until_all_layers_are_matched():
    nets, x = [distinct_neurons(6, 5, 4, 3, seed=e) for e in range(3)], torch.randn(20, 6)
    counts = [*COUNTS, [1.0, 1.0, 1.0]]
    fedma = FedMA()

    def prediction(server, states, e):
        view = fedma.downlink(server, torch.tensor(e))
        return fedma.predict(view, states[e], lambda w: outputs(w, x)[None])

    server, states = after_rounds(fedma, nets, counts, rounds=2, absent=[(1, 2)])
    assert server["matched"].tolist() == [2, 2, 1]
    assert torch.equal(prediction(server, states, 2), outputs(nets[2], x))
    assert not torch.allclose(prediction(server, states, 0), outputs(nets[0], x), atol=1e-2)

    server, states = after_rounds(fedma, nets, counts, rounds=3, absent=[(1, 2)])
    assert server["t"] == 3
    assert torch.equal(prediction(server, states, 2), prediction(server, states, 0))


def test_fedma_trains_the_layers_from_t_on_and_an_agent_that_missed_one_trains_none():
    nets = [distinct_neurons(6, 5, 4, 3, seed=e) for e in range(3)]
    server, states = after_rounds(FedMA(), nets, [*COUNTS, [1.0, 1.0, 1.0]], rounds=1, absent=[(0, 2)])
    member, outsider = Stepping(COUNTS[0], 1.0), Stepping([1.0, 1.0, 1.0], 1.0)
    state, upload = FedMA().local(FedMA().downlink(server, torch.tensor(0)), states[0], member)
    assert member.frozen == {"1.weight", "1.bias"}
    # its layer 1 over all atoms: 0 where it has no such neuron, plus one step
    L = int(server["width"][0])
    assert L > 5
    expected = torch.zeros(4, L)
    expected[:, server["order"][0, :5]] = nets[0]["3.weight"][0]
    assert torch.allclose(upload.each["weight"], expected + 1)
    assert torch.allclose(upload.each["bias"], nets[0]["3.bias"][0] + 1)
    for k, v in state["v"].items():  # its own neurons keep that step
        assert torch.allclose(v, nets[0][k] + (not k.startswith("1.")))
    state, _ = FedMA().local(FedMA().downlink(server, torch.tensor(2)), states[2], outsider)
    assert all(torch.equal(v, nets[2][k]) for k, v in state["v"].items())


def test_a_round_of_fedma_with_only_unmatched_agents_changes_nothing():
    nets = [distinct_neurons(6, 5, 3, seed=e) for e in range(2)]
    one, _ = after_rounds(FedMA(), nets, COUNTS, rounds=1, absent=[(0, 1)])
    two, _ = after_rounds(FedMA(), nets, COUNTS, rounds=2, absent=[(0, 1), (1, 0)])
    three, _ = after_rounds(FedMA(), nets, COUNTS, rounds=3, absent=[(0, 1), (1, 0)])
    assert all(torch.equal(v, flatten(two)[k]) for k, v in flatten(one).items())
    assert three["t"] == 2


@both
@every_engine
def test_numbers_that_are_not_finite_are_reported_as_divergence(algorithm, engine, ragged):
    with pytest.raises(Diverged, match=r"train\.lr"):
        list(run(Setup.of(algorithm, ragged, 2, train=ff.Train(lr=1e30, steps=5), engine=engine)))
