"""Edge cases: layers used twice or never, scalar parameters, single examples, runs that diverge."""

from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from helpers.federations import make_ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import focusfl as ff
from focusfl.core import Data
from focusfl.core.tree import flatten
from focusfl.engines import ENGINES, plan
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.one_agent import LocalAgent
from focusfl.fairness import intervals
from focusfl.models.task import Task
from focusfl.run.identity import behaviour
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError

every_engine = pytest.mark.parametrize("engine", list(ENGINES))


def trained(algorithm, fed, model, engine="auto", rounds=2, train=None):
    """The server after the last round."""
    *_, last = run(Setup.of(algorithm, fed, rounds, model, train=train or ff.Train(lr=0.1, steps=2), engine=engine))
    return last.server


def twice():
    a = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 4), a, nn.Linear(4, 3), a)


def tied():
    a, h = nn.ReLU(), nn.Linear(3, 3)
    return nn.Sequential(nn.Linear(6, 3), a, h, a, h)


class ScalarAndUnused(nn.Module):
    """A layer, a scalar parameter, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.layer, self.t, self.idle = nn.Linear(6, 3), nn.Parameter(torch.tensor(1.0)), nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) * self.t


@pytest.mark.parametrize("model", [twice, tied, ScalarAndUnused])
def test_engines_agree_on_layers_used_twice_or_never(model, ragged):
    one, other = (flatten(trained(ff.FedAvg(), ragged, model, engine)) for engine in ENGINES)
    for k, v in one.items():
        assert torch.allclose(v, other[k], atol=1e-5), k


@pytest.mark.parametrize("model", [twice, tied])
def test_the_kernel_leaves_layers_used_twice_to_autograd(model):
    assert Mlp.of(Task(model(), 3), flat=True) is None


@every_engine
def test_a_layer_that_is_not_used_does_not_change(engine, ragged):
    setup = Setup.of(ff.FedAvg(), ragged, 1, ScalarAndUnused, train=ff.Train(lr=0.1, steps=2), engine=engine)
    before = setup.start()[0]["w"]
    *_, last = run(setup)
    after = last.server["w"]
    assert torch.allclose(after["idle.weight"], before["idle.weight"], atol=1e-7)
    assert not torch.allclose(after["t"], before["t"], atol=1e-4)


@every_engine
@pytest.mark.parametrize(
    "algorithm",
    [
        ff.Focus(M=2),
        ff.Focus(M=2, init="tied", robust="clip"),
        ff.QFFL(),
        ff.CGSV(),
        ff.CFL(),
        ff.FeSEM(M=2),
    ],
    ids=lambda a: f"{a.name} {getattr(a, 'init', '')}",
)
def test_a_parameter_may_be_a_scalar(algorithm, engine, ragged):
    server = trained(algorithm, ragged, ScalarAndUnused, engine)
    assert all(torch.isfinite(v).all() for v in flatten(server).values())


def test_noise_is_added_to_a_scalar_parameter_that_is_zero():
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.zeros(3, 1)), nn.Parameter(torch.tensor(0.0))

    w = ff.models.task.InitialWeights(Zero(), 0).copies(2, noise=0.01)
    assert w["b"].shape == (2,) and w["b"][0] == 0 != w["b"][1]


class FunctionNet(nn.Module):
    """Its output depends on a function; its last layer may be 0."""

    def __init__(self, f, head=1.0):
        super().__init__()
        self.f, self.layer, self.head = f, nn.Linear(6, 6), nn.Linear(6, 3)
        with torch.no_grad():
            self.head.weight.mul_(head)

    def forward(self, x):
        return self.head(self.f(self.layer(x)))


def net_class(function):
    """A class called Net with this function in its `forward`."""

    def forward(self, x):
        return function(self.layer(x))

    def init(self):
        nn.Module.__init__(self)
        self.layer = nn.Linear(6, 3)

    return type("Net", (nn.Module,), {"__init__": init, "forward": forward})


def in_float32(f, x):
    return f(x.float() @ torch.ones(6, 6))


def fingerprint(fed, model):
    return Setup.of(ff.FedAvg(), fed, 2, model).fingerprint


@pytest.mark.parametrize(
    "models",
    [
        [partial(FunctionNet, f) for f in (torch.tanh, torch.relu)],
        [partial(FunctionNet, f, 0.0) for f in (torch.tanh, torch.relu)],
        [partial(FunctionNet, partial(in_float32, f)) for f in (torch.tanh, torch.sin)],
        [net_class(f) for f in (torch.tanh, torch.sigmoid)],
        [net_class(f) for f in (lambda x: x, lambda x: 5 * x)],
    ],
    ids=["attribute", "zeros at the end", "float32 alone", "forward", "scale"],
)
def test_the_behaviour_of_a_custom_network_changes_the_fingerprint(models, ragged):
    one, again, other = (fingerprint(ragged, model) for model in (models[0], models[0], models[1]))
    assert one == again != other


def test_a_hook_changes_the_fingerprint(ragged):
    plain, hooked = nn.Linear(6, 3), nn.Linear(6, 3)
    hooked.load_state_dict(plain.state_dict())
    hooked.register_forward_hook(lambda m, x, y: 2 * y)
    assert fingerprint(ragged, plain) != fingerprint(ragged, hooked)


@pytest.mark.parametrize(
    "network",
    [
        ff.models.mlp(6, 4, 3),
        ff.models.resnet18(3, width=8),
        nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.LSTM(6, 3),
    ],
    ids=["mlp", "resnet", "layers of torch", "LSTM"],
)
def test_fingerprints_of_common_networks_do_not_depend_on_their_behaviour(network):
    assert behaviour(network, torch.ones(4, 6)) == []


def test_rounding_errors_do_not_change_the_fingerprint():
    network, x = FunctionNet(torch.tanh), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert behaviour(network, x) == behaviour(network, x.double() * (1 + 1e-13))


def test_batch_norm_without_momentum_is_refused(ragged):
    """It would count batches, and counters stay with the network."""
    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))
    with pytest.raises(InputError, match="momentum"):
        Setup.of(ff.FedAvg(), ragged, 1, network)


@every_engine
def test_divergence_is_found_before_the_first_evaluation(engine):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, 3, generator=rng)
    fed = ff.Federation.from_agents([(x[e], x[e, :, 0] * (1.0 if e % 2 else -1.0)) for e in range(3)])
    algorithm, train = ff.Focus(M=2, init="tied"), ff.Train(lr=1e8, steps=3)
    setup = Setup.of(algorithm, fed, 2, lambda: nn.Linear(3, 1), train=train, engine=engine)
    with pytest.raises(Diverged, match="diverged in round"):
        list(run(setup, eval_every=2))


@pytest.mark.parametrize("batch", [None, 8, 4])
def test_tokens_stay_integers_in_bfloat16(batch):
    task = Task(nn.Sequential(nn.Embedding(1000, 4), nn.Flatten(), nn.Linear(20, 2)), 2)
    task.bf16 = True
    rng = torch.Generator().manual_seed(0)
    data = Data(torch.randint(0, 1000, (8, 5), generator=rng), torch.arange(8) % 2)
    w = {k: v.unsqueeze(0) for k, v in task.weights().items()}
    theta = LocalAgent(task, data, ff.Train(lr=0.1, steps=4, batch=batch), 0.1, 0, 0, 0).sgd(w)
    changed = (theta["0.weight"] != w["0.weight"]).any(2)[0].nonzero().flatten()
    assert set(changed.tolist()) == set(data.x.flatten().tolist())


def normed():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_batch_norm_joins_a_last_batch_of_one_to_the_one_before():
    fed = make_ragged(
        sizes=(10, 7, 9, 12, 4)
    )  # in batches of three, the last batches of agents 0, 1 and 4 have one example
    train = ff.Train(lr=0.1, epochs=2, batch=3)
    trained(ff.FedAvg(), fed, normed, train=train)
    setup = Setup.of(ff.FedAvg(), fed, 1, normed, train=train)
    agent = LocalAgent(setup.task, fed.train(0), train, 0.1, 0, 0, 0)
    rows = [rows.tolist() for _, rows in agent._batches(agent.train)]
    assert [len(step) for step in rows] == [3, 3, 4, 3, 3, 4]
    assert sorted(chain(*rows[:3])) == sorted(chain(*rows[3:])) == list(range(10))


@pytest.mark.parametrize(
    "model",
    [
        lambda: ff.models.mlp(6, 3),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(6, 3)),
    ],
    ids=["no batch norm", "batch norm over places"],
)
def test_other_networks_train_on_a_last_batch_of_one(model):
    fed, train = make_ragged(sizes=(10, 7, 9, 12, 4)), ff.Train(lr=0.1, epochs=1, batch=3)
    agent = LocalAgent(Task(model(), 3), fed.train(0), train, 0.1, 0, 0, 0)
    planned = plan.batches(0, 0, np.array([0]), np.array([10]), train)
    assert [rows.tolist() for _, rows in agent._batches(agent.train)] == [
        planned.step(0, k).tolist() for k in range(4)
    ]


@pytest.mark.parametrize(
    ("sizes", "batch", "place"),
    [((5, 7, 1, 6, 1), None, "agent 2"), ((5, 7, 4, 6, 4), 1, "train.batch")],
)
def test_batch_norm_of_single_examples_is_refused(sizes, batch, place):
    fed, train = make_ragged(sizes=sizes), ff.Train(batch=batch)
    with pytest.raises(InputError, match=place):
        Setup.of(ff.FedAvg(), fed, 1, normed, train=train)
    Setup.of(ff.FedAvg(), fed, 1, train=train)


agent = st.tuples(st.integers(-40, 40).map(lambda k: k / 8), st.integers(1, 80).map(lambda k: k / 8))


@given(st.lists(agent, min_size=2, max_size=12), st.sampled_from([0.0, 0.5, 1.96, 3.0]))
def test_the_widest_pair_is_the_widest_of_all_pairs(agents, z):
    x, s = torch.tensor(agents).double().T
    pairs = [(e, f) for e in range(len(x)) for f in range(len(x)) if e != f]
    widths = [float(x[e] - x[f] + z * torch.hypot(s[e], s[f])) for e, f in pairs]
    found, share = intervals.widest_pair(x, s, z)
    assert found == pytest.approx(max(widths))
    widest = [p for p, width in zip(pairs, widths, strict=True) if width > max(widths) - 1e-9]
    shares = [float(torch.hypot(s[e], s[f]) / (s[e] + s[f])) for e, f in widest]
    assert any(share == pytest.approx(v) for v in shares)


def test_fedsoft_enrolls_on_the_device_of_its_centres():
    """Fake tensors replace a GPU, which this machine may lack."""
    with FakeTensorMode():
        state = ff.FedSoft(M=3).enroll({"c": {"w": torch.empty(3, 4, 2, device="cuda")}})
        assert state["u"].device.type == state["theta"]["w"].device.type == "cuda"
