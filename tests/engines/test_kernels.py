"""Optimisations do not change results: kernels against autograd, estimated losses, skipped models."""

import numpy as np
import pytest
import torch
from helpers.federations import make_ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import focusfl as ff
from focusfl.core import mixture
from focusfl.engines import ENGINES, plan
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.one_agent import LocalAgent
from focusfl.engines.vectorised import batched
from focusfl.models.task import Task
from focusfl.run.fit import notes
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util import device
from focusfl.util.errors import InputError

every_engine = pytest.mark.parametrize("engine", list(ENGINES))
widths = st.lists(st.integers(1, 7), min_size=2, max_size=4)


@settings(deadline=None)
@given(widths, st.integers(1, 4), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 2**30))
def test_the_kernel_equals_autograd(sizes, P, B, regression, skip, seed):
    rng = torch.Generator().manual_seed(seed)
    sizes = [*sizes[:-1], 1] if regression else sizes
    network = ff.models.SkipMlp if skip else ff.models.mlp
    task = Task(network(*sizes).double(), None if regression else sizes[-1])
    w = {k: torch.randn(P, *v.shape, generator=rng, dtype=torch.double) for k, v in task.weights().items()}
    x = torch.randn(P, B, sizes[0], generator=rng, dtype=torch.double)
    y = torch.randint(0, sizes[-1], (P, B), generator=rng)
    y = y.double() if regression else y
    share = torch.rand(P, B, generator=rng, dtype=torch.double)
    by_hand = Mlp.of(task, flat=True).gradient(w, x, y, share)
    for k, v in batched.gradient(task, w, x, y, share, ()).items():
        assert torch.allclose(by_hand[k], v, atol=1e-10)


def test_the_gradient_of_a_linear_model_by_hand():
    """h = 2 x, (x, y) = (3, 5): the loss is (6 - 5)^2, its derivative 2 (6 - 5) 3 = 6; for half a share 3."""
    task = Task(ff.models.linear(1), None)
    one = torch.ones(1, 1)
    grad = Mlp.of(task, flat=True).gradient({"1.weight": 2 * one[None]}, 3 * one[None], 5 * one, 0.5 * one)
    assert grad["1.weight"].item() == 3


def test_frozen_tensors_have_no_gradient():
    task = Task(ff.models.mlp(3, 4, 2), 2)
    w = {k: v.unsqueeze(0) for k, v in task.weights().items()}
    x, y, share = torch.ones(1, 5, 3), torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 5)
    grad = Mlp.of(task, flat=True).gradient(w, x, y, share, ["1.weight"])
    assert set(grad) == {"1.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False),
        nn.Sequential(),
    ],
    ids=["no Sequential", "Tanh", "no ReLU", "ends in ReLU", "another Flatten", "frozen", "empty"],
)
def test_other_networks_use_autograd(network):
    assert Mlp.of(Task(network, 2), flat=True) is None


def test_images_without_flatten_use_autograd():
    network = nn.Sequential(nn.Linear(3, 2))
    assert Mlp.of(Task(network, 2), flat=False) is None
    assert Mlp.of(Task(network, 2), flat=True) is not None


@given(st.integers(0, 100), st.integers(1, 3000))
def test_ten_rounds_of_estimated_losses_use_every_example_once(t, n):
    rows = np.concatenate(
        [np.arange(n)[plan.estimate_rows(t + i, n)] for i in range(10 if n >= plan.MIN_EXAMPLES_TO_ESTIMATE else 1)]
    )
    assert sorted(rows) == list(range(n))


@every_engine
def test_an_estimated_loss_is_the_mean_over_a_tenth_of_the_examples(engine):
    fed = make_ragged(sizes=(1203, 40, 9, 9, 9))
    setup = Setup.of(ff.Focus(M=2, init="tied"), fed, 5, train=ff.Train(steps=1), engine=engine)
    server, states = setup.start()
    states["log_pi"][:] = torch.tensor([0.0, -100.0])
    t = 3
    expect = []
    every = slice(None)  # small agents use all examples
    for e, rows in ((0, slice(3, None, 10)), (1, every), (2, every), (3, every), (4, every)):
        each = LocalAgent(setup.task, fed.train(e), setup.settings.local, 0.1, 0, t, e).example_losses(server["w"])
        expect.append(-100 - float(each[1, rows].mean()) + float(each[0].mean()))
    setup.engine.round(setup.algorithm, server, states, t, np.arange(5))
    assert torch.allclose(states["log_pi"][:, 1], torch.tensor(expect), atol=1e-4)


def test_models_with_tiny_labels_do_not_predict():
    asked = []

    def h(w, only):
        asked.append(only.tolist())
        return w["a"] * only.reshape(-1, 1, 1)

    pi = torch.tensor([0.7, 0.29999, 0.00001])
    w = {"a": torch.tensor([0.0, 1.0, 1.0]).reshape(3, 1, 1)}
    mixed = mixture(pi, w, h)
    assert asked == [[True, True, False]]
    assert abs(float(mixed) - 0.3) < 1e-4


@settings(deadline=None)
@given(st.lists(st.floats(-20, 0), min_size=1, max_size=6), st.integers(0, 2**30))
def test_skipping_models_changes_a_probability_by_less_than_1e_4(log_pi, seed):
    pi = torch.tensor(log_pi).softmax(0)
    p = torch.rand(len(pi), 5, 3, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    mixed = mixture(pi, {}, lambda w, only: p * only[:, None, None])
    assert (mixed - torch.einsum("m,mnc->nc", pi, p)).abs().max() < 1e-4 + 1e-6
    assert torch.allclose(mixed.sum(-1), torch.ones(5), atol=1e-5)


@every_engine
def test_with_settled_labels_a_prediction_runs_one_model(engine, monkeypatch):
    fed = make_ragged()
    setup = Setup.of(ff.Focus(M=3, init="tied"), fed, 1, engine=engine)
    server, states = setup.start()
    states["log_pi"][:] = torch.tensor([-60.0, 0.0, -60.0])
    rows = []
    outputs = Task.outputs
    monkeypatch.setattr(Task, "outputs", lambda s, w, x, **k: rows.append(len(x)) or outputs(s, w, x, **k))
    setup.engine.evaluate(setup.algorithm, server, states)
    sizes = fed.testing.sizes
    assert sum(rows) == (sizes.sum() if engine == "serial" else sizes.max() * len(sizes))


@pytest.mark.slow
def test_labels_and_accuracy_are_those_of_the_run_without_shortcuts():
    """With prune = 0 every model is trained and evaluated on all examples."""
    fed = ff.data.rotated_digits()
    short, whole = (
        list(run(Setup.of(ff.Focus(M=3, init="independent", prune=p), fed, 40, seed=1)))[-1] for p in (1e-4, 0.0)
    )
    a, b = (r.states["log_pi"].exp() for r in (short, whole))
    assert (a - b).abs().max() < 1e-3
    assert abs(float(short.scores.acc.mean() - whole.scores.acc.mean())) < 1e-3


def test_bfloat16_is_ignored_with_a_note_on_processors_without_support(monkeypatch):
    fed = make_ragged()
    monkeypatch.setattr(device, "supports_bf16", lambda place: False)
    setup = Setup.of(ff.FedAvg(), fed, 1, precision="bf16")
    assert not setup.bf16 and not setup.engine.task.bf16
    assert ["bfloat16" in line for line in notes(setup)] == [True]
    with pytest.raises(InputError, match="precision"):
        Setup.of(ff.FedAvg(), fed, 1, precision="fp8")
    with pytest.raises(InputError, match="flower"):
        Setup.of(ff.FedAvg(), fed, 1, precision="bf16", engine="flower")


@every_engine
def test_bfloat16_products_keep_float32_weights_and_nearly_the_same_result(engine, monkeypatch):
    """Products in bfloat16 have 8 bits: each has a random error of 0.4 %. The numbers need no hardware support."""
    monkeypatch.setattr(device, "supports_bf16", lambda place: True)
    fed = ff.data.rotated_digits()
    train = ff.Train(lr=0.3, steps=5)
    *_, low = run(Setup.of(ff.FedAvg(), fed, 20, train=train, precision="bf16", engine=engine))
    *_, full = run(Setup.of(ff.FedAvg(), fed, 20, train=train, engine=engine))
    a, b = low.server["w"]["1.weight"], full.server["w"]["1.weight"]
    assert a.dtype == torch.float32
    assert 0 < (a - b).norm() / b.norm() < 0.02
    assert abs(float(low.scores.acc.mean() - full.scores.acc.mean())) < 0.02
