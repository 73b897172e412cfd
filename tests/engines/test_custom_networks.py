"""Custom networks: hooks, shared weights, frozen parts in bfloat16, statistics that `forward` assigns."""

import hashlib
from functools import partial

import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.engines import ENGINES
from focusfl.engines.kernels.mlp import Mlp
from focusfl.models.task import Task
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

TRAIN = ff.Train(lr=0.3, steps=5)


def trained(fed, model, engine="auto", algorithm=None, folder=None, **how):
    """The last round of a short run."""
    setup = Setup.of(algorithm or ff.FedAvg(), fed, 4, model, train=TRAIN, engine=engine)
    *_, last = run(setup, folder, **how)
    return last


def small(a=None, b=None):
    return nn.Sequential(a or nn.Linear(6, 8), nn.ReLU(), b or nn.Linear(8, 3))


def hooked():
    network = small()
    network[0].register_forward_hook(lambda m, x, y: 0.1 * y)
    return network


def pre_hooked():
    network = small()
    network.register_forward_pre_hook(lambda m, x: (0.1 * x[0],))
    return network


def replaced():
    network = small()
    network[2].forward = lambda x: 0.1 * nn.functional.linear(x, torch.ones(3, 8))
    return network


def tied():
    a, b = nn.Linear(6, 6), nn.Linear(6, 6)
    b.weight = a.weight
    return nn.Sequential(a, nn.ReLU(), b, nn.ReLU(), nn.Linear(6, 3))


def backward_hooked():
    network = small()
    network[2].register_full_backward_hook(lambda m, into, out: (0.1 * into[0],))
    return network


def spectral():
    return small(nn.utils.spectral_norm(nn.Linear(6, 8)))


# hooks and shared weights


@pytest.mark.parametrize("model", [hooked, pre_hooked, replaced, tied])
def test_networks_with_hooks_or_shared_weights_use_autograd(model):
    assert Mlp.of(Task(model(), 3), flat=True) is None


@pytest.mark.parametrize("model", [hooked, pre_hooked, tied])
def test_engines_agree_on_hooks_and_shared_weights(model, ragged):
    one, other, auto = (trained(ragged, model, engine).scores.loss for engine in [*ENGINES, "auto"])
    assert torch.allclose(one, other, atol=1e-5) and torch.allclose(one, auto, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
@pytest.mark.parametrize("model", [hooked, pre_hooked, backward_hooked, spectral])
def test_auto_runs_networks_with_hooks_serially(model, ragged):
    assert not Task(model(), 3).stateless
    assert Setup.of(ff.FedAvg(), ragged, 1, model, train=TRAIN).engine.name == "serial"


def test_vectorised_refuses_backward_hooks(ragged):
    with pytest.raises(InputError, match=r"backward hooks.*serial"):
        Setup.of(ff.FedAvg(), ragged, 1, backward_hooked, train=TRAIN, engine="vectorised")


@pytest.mark.parametrize("network", [ff.models.mlp, ff.models.SkipMlp])
def test_the_default_networks_are_stateless_and_have_a_kernel(network):
    task = Task(network(6, 8, 3), 3)
    assert task.stateless and Mlp.of(task, flat=True) is not None


# types


class Frozen(nn.Module):
    """A backbone in bfloat16, a head in float32."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = [scale]  # fingerprints do not read lists
        self.back, self.head = nn.Linear(6, 8).bfloat16().requires_grad_(False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.scale[0] * self.back(x.bfloat16()).float())


class Cast(Frozen):
    """The same, with the types of the weights."""

    def forward(self, x):
        return self.head(self.back(x.to(self.back.weight.dtype)).to(self.head.weight.dtype))


@pytest.mark.parametrize("model", [Frozen, Cast])
def test_a_frozen_part_may_be_bfloat16(model, ragged, tmp_path):
    last = trained(ragged, model, folder=tmp_path)
    again = trained(ragged, model, folder=tmp_path, resume=True)
    assert torch.equal(last.scores.loss, again.scores.loss)
    assert ff.fit(ff.FedAvg(), ragged, rounds=1, model=model, progress=False)


def test_the_fingerprint_depends_on_the_outputs_of_a_network_in_two_types(ragged):
    one, again, other = (Setup.of(ff.FedAvg(), ragged, 1, partial(Frozen, s)).fingerprint for s in (1, 1, 3))
    assert one == again != other


def test_the_fingerprint_of_float32_networks_does_not_change(ragged, monkeypatch):
    """Checkpoints store it: the hashed bytes are those of numpy, as in earlier versions."""
    hashed = []

    class Recorder:
        def __init__(self, first):
            self.update, self.hexdigest = hashed.append, lambda: ""

    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    setup = Setup.of(ff.FedAvg(), ragged, 1, network)
    _ = ragged.fingerprint
    monkeypatch.setattr(hashlib, "sha256", Recorder)
    _ = setup.fingerprint
    assert hashed == [k.encode() + v.numpy().tobytes() for k, v in sorted(network.state_dict().items())]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_trained_weights_must_be_float32(kind, ragged):
    network = small(b=nn.Linear(8, 3).to(getattr(torch, kind)))
    with pytest.raises(InputError, match=rf"2\.weight.*{kind}"):
        Setup.of(ff.FedAvg(), ragged, 1, network)
    Setup.of(ff.FedAvg(), ragged, 1, network.float())


# statistics


class Centred(nn.Module):
    """Subtracts the batch's mean in training, else a running mean, which is written in place or assigned."""

    def __init__(self, assign, persistent=True):
        super().__init__()
        self.assign, self.layer = assign, nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6), persistent=persistent)

    def forward(self, x):
        if not self.training:
            return self.layer(x - self.mean)
        mean = x.detach().mean(0)
        if self.assign:
            self.mean = 0.9 * self.mean + 0.1 * mean
        else:
            self.mean.mul_(0.9).add_(0.1 * mean)
        return self.layer(x - mean)


class Scaled(nn.Module):
    """The gradient needs the old value, which `forward` replaces."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 3)
        self.register_buffer("size", torch.ones(4))

    def forward(self, x):
        h = self.a(x)
        out = self.b(h / self.size)
        if self.training:
            self.size = 0.9 * self.size + 0.1 * h.abs().mean(0)  # with its graph
        return out


class Growing(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(0), persistent=persistent)

    def forward(self, x):
        self.seen = x.detach().mean(0)
        return self.layer(x)


def by_torch(model, x, y, steps):
    network = ff.models.task.InitialWeights(model, 0).network().train()
    sgd = torch.optim.SGD(network.parameters(), lr=TRAIN.lr)
    for _ in range(steps):
        sgd.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        sgd.step()
        for b in network.buffers():
            b.detach_()
    return network.state_dict()


@pytest.mark.parametrize("model", [partial(Centred, True), partial(Centred, False), Scaled])
def test_statistics_equal_those_of_plain_torch(model, ragged):
    last = trained(ragged, model, algorithm=ff.Local())
    for k, v in by_torch(model, *ragged.train(0), steps=4 * TRAIN.steps).items():
        assert torch.allclose(last.states["w"][k][0].squeeze(0), v, atol=1e-5), k


@pytest.mark.parametrize("assign", [True, False])
def test_a_buffer_that_is_not_persistent_does_not_change(assign, ragged, tmp_path):
    model = partial(Centred, assign, persistent=False)
    setup = Setup.of(ff.FedAvg(), ragged, 4, model, train=TRAIN, checkpoint_every=2)
    rounds = run(setup, tmp_path)
    assert next(rounds).t == 1 and next(rounds).t == 2
    rounds.close()
    assert torch.equal(setup.task.network.mean, torch.zeros(6))
    resumed = trained(ragged, model, folder=tmp_path, resume=True)
    assert torch.equal(resumed.scores.loss, trained(ragged, model).scores.loss)


def test_evaluation_changes_no_statistics():
    def count(m, x):
        m.mean += 1

    network = Centred(False)
    network.register_forward_pre_hook(count)
    task = Task(network, 3)
    w = {k: v.clone() for k, v in task.weights().items()}
    task.outputs(w, torch.ones(2, 6))
    assert not w["mean"].any()
    task.outputs(w, torch.ones(2, 6), train=True)
    assert w["mean"].all()


def test_statistics_that_change_their_shape_are_refused(ragged):
    with pytest.raises(InputError, match=r"seen.*persistent"):
        trained(ragged, partial(Growing, True))
    trained(ragged, partial(Growing, False))
