"""Losses: by hand, against torch, and the same numbers on both engines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.models.losses import resolve
from focusfl.models.task import Task
from focusfl.run.setup import Setup

OPTIONS = {"rounds": 3, "seed": 1, "bayes": "agent"}
TRAIN = ff.Train(lr=0.1, steps=3, batch=4)


def make_regression() -> ff.Federation:
    rng = np.random.default_rng(0)
    agents = [(x := rng.normal(size=(n, 4)), x @ [1.0, -1, 2, 0] + rng.normal(size=n)) for n in (9, 14, 6)]
    return ff.Federation.from_agents(agents, test=0.4, model=lambda: ff.models.mlp(4, 5, 1), train=TRAIN)


def make_classes(classes: int = 3) -> ff.Federation:
    rng = np.random.default_rng(1)
    agents = [(rng.normal(size=(n, 4)), np.arange(n) % classes) for n in (9, 14, 6)]
    return ff.Federation.from_agents(agents, test=0.4, model=lambda: ff.models.mlp(4, 5, classes), train=TRAIN)


def make_multi_label() -> ff.Federation:
    rng = np.random.default_rng(2)
    agents = [(x := rng.normal(size=(n, 4)), (x[:, :3] > 0.2).astype(int)) for n in (9, 14, 6)]
    return ff.Federation.from_agents(agents, test=0.4, model=lambda: ff.models.mlp(4, 5, 3), train=TRAIN)


def smooth_hinge(out, y):
    """A user's own function, with one value per class."""
    sign = 2 * nn.functional.one_hot(y, out.shape[-1]) - 1
    return nn.functional.softplus(1 - sign * torch.log_softmax(out, -1))


CASES = [
    (make_classes, "cross-entropy"),
    (make_classes, "focal:gamma=1.5"),
    (make_classes, "weighted:1,5,0.5"),
    (make_classes, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)),
    (make_classes, smooth_hinge),
    (make_multi_label, "multi-label"),
    (make_multi_label, nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 3.0]))),
    (make_regression, "squared-error"),
    (make_regression, "absolute-error"),
    (make_regression, "huber:delta=0.5"),
    (make_regression, nn.SmoothL1Loss()),
]


@pytest.mark.parametrize(("make", "loss"), CASES, ids=[str(case[1])[:20] for case in CASES])
def test_engines_agree(make, loss):
    fed = make()
    for method in (ff.Focus(M=2), ff.Ditto()):
        serial, vectorised = (ff.fit(method, fed, loss=loss, engine=e, **OPTIONS) for e in ("serial", "vectorised"))
        assert torch.allclose(serial.loss, vectorised.loss, atol=1e-5)
        assert torch.allclose(serial.bayes, vectorised.bayes, atol=1e-5)
        for k, v in serial.server["w"].items():
            assert torch.allclose(v, vectorised.server["w"][k], atol=1e-5)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize(("make", "loss"), CASES, ids=[str(case[1])[:20] for case in CASES])
def test_training_follows_the_gradient_of_the_mean_loss(make, loss, engine):
    """One full-batch step of one agent, by autograd on the loss itself."""
    fed = make()
    setup = Setup.of(ff.Local(), fed, 1, train=ff.Train(lr=0.1, steps=1), loss=loss, engine=engine)
    server, states = setup.start()
    setup.engine.round(setup.algorithm, server, states, 0, np.arange(fed.E))
    network, (x, y) = setup.networks.network(), fed.train(1)
    out = network(x)
    own = {
        "cross-entropy": nn.functional.cross_entropy,
        "focal:gamma=1.5": lambda o, y: ((1 - (p := o.softmax(1)[range(len(y)), y])) ** 1.5 * -p.log()).mean(),
        "weighted:1,5,0.5": lambda o, y: (
            torch.tensor([1, 5, 0.5])[y] * nn.functional.cross_entropy(o, y, reduction="none")
        ).mean(),
        "multi-label": nn.functional.binary_cross_entropy_with_logits,
        "squared-error": lambda o, y: nn.functional.mse_loss(o[:, 0], y),
        "absolute-error": lambda o, y: nn.functional.l1_loss(o[:, 0], y),
        "huber:delta=0.5": lambda o, y: nn.functional.huber_loss(o[:, 0], y, delta=0.5),
    }
    if isinstance(loss, str):
        value = own[loss](out, y)
    elif isinstance(loss, nn.CrossEntropyLoss):  # torch's mean divides by the sum of the weights
        each = nn.CrossEntropyLoss(weight=loss.weight, label_smoothing=0.1, reduction="none")
        value = each(out, y).mean()
    else:
        value = loss(out if fed.classes else out[:, 0], y).mean()
    grads = torch.autograd.grad(value, list(network.parameters()))
    for (k, v), g in zip(network.named_parameters(), grads, strict=True):
        assert torch.allclose(states["w"][k][1, 0], v - 0.1 * g, atol=1e-6)


@pytest.mark.parametrize(("make", "loss"), CASES, ids=[str(case[1])[:20] for case in CASES])
def test_the_loss_of_a_prediction_is_that_of_the_outputs(make, loss):
    """For one model, eq. 7 on probabilities is the loss on the outputs, as every loss here ignores a shift."""
    fed = make()
    task = Setup.of(ff.Local(), fed, 1, loss=loss).task
    x, y = fed.train(1)
    out = task.outputs(task.weights(), x)
    assert torch.allclose(task.score(task.predictions(out), y).loss, task.example_losses(out, y), atol=1e-5)


def test_values_by_hand():
    out, y = torch.tensor([[0.0, math.log(3)]]), torch.tensor([0])  # probabilities 1/4, 3/4
    assert resolve("focal", 2).each(out, y).item() == pytest.approx(0.75**2 * math.log(4))
    assert resolve("weighted:2,7", 2).each(out, y).item() == pytest.approx(2 * math.log(4))
    assert resolve("huber:delta=2", None).each(torch.tensor([1.0, 5.0]), torch.zeros(2)).tolist() == [0.5, 8.0]
    task = Task(nn.Linear(1, 2), 2, resolve(None, 2, several=True))
    score = task.score(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0, 0.0]]))
    assert score.loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert score.correct.item() == 0.5


def test_a_default_loss_by_name_is_the_same_run():
    fed = make_classes()
    named, default = (Setup.of(ff.FedAvg(), fed, 2, loss=loss).fingerprint for loss in ("cross-entropy", None))
    assert named == default


def test_another_loss_is_another_run():
    fed = make_classes()
    heavy, heavier = (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, w])) for w in (2.0, 3.0))
    losses = [None, "focal", "focal:gamma=1", smooth_hinge, heavy, heavier]
    found = [Setup.of(ff.FedAvg(), fed, 2, loss=loss).fingerprint for loss in losses]
    assert len(set(found)) == len(losses)
    assert found[4] == Setup.of(ff.FedAvg(), fed, 2, loss=nn.CrossEntropyLoss(weight=heavy.weight)).fingerprint


def test_the_known_best_loss_is_that_of_the_default_loss_only():
    fed = ff.data.synthetic()
    assert ff.fit(ff.FedAvg(), fed, rounds=1).best.kind == "exact"
    assert ff.fit(ff.FedAvg(), fed, rounds=1, loss="huber").best.kind == "true"
    with pytest.raises(ff.InputError, match="exact"):
        ff.fit(ff.FedAvg(), fed, rounds=1, loss="huber", bayes="exact")


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_multi_label_data_trains_and_counts(engine):
    fed = make_multi_label()
    assert fed.multi_label and fed.classes == 3
    start = ff.fit(ff.FedAvg(), fed, rounds=1, engine=engine)
    end = ff.fit(ff.FedAvg(), fed, rounds=60, engine=engine)
    assert end.loss.mean() < start.loss.mean() and end.acc.mean() > start.acc.mean()
    p = end.predict(0, fed.test(0).x)
    right = ((p > 0.5).float() == fed.test(0).y).float().mean()
    assert end.acc[0].item() == pytest.approx(right.item())
    matched = ff.fit(ff.FedMA(), fed, rounds=2, engine=engine)  # it weighs the last layer by label counts
    assert torch.isfinite(matched.loss).all()


@pytest.mark.parametrize(
    ("make", "loss", "word"),
    [
        (make_classes, "huber", "classes"),
        (make_regression, "focal", "squared-error"),
        (make_multi_label, "cross-entropy", "multi-label"),
        (make_classes, "weighted:1,2", "3 classes"),
        (make_classes, "weighted", "weighted:1,5"),
        (make_classes, "focall", "focal"),
        (make_classes, "focal:2", "gamma"),
        (make_regression, "huber:delta=0", "delta"),
        (make_classes, "cross-entropy:1", "options"),
        (make_classes, nn.functional.cross_entropy, "per example"),
        (make_classes, nn.MSELoss(), "loss"),
        (make_classes, lambda out, y: out.argmax(1).float(), "gradient"),
        (make_classes, 3, "loss"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(make, loss, word):
    with pytest.raises(ff.InputError, match=word):
        ff.fit(ff.FedAvg(), make(), loss=loss, rounds=1)


def test_labels_that_are_not_0_or_1_are_refused():
    x = torch.zeros(4, 2)
    for wrong in (torch.full((4, 3), 2), torch.zeros(4, 2), torch.zeros(4)):
        with pytest.raises(ff.InputError, match="agent 1"):
            ff.Federation.from_agents([(x, torch.zeros(4, 3)), (x, wrong)])
