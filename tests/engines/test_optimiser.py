"""The optimisers of local training against torch.optim, in double precision, over many steps."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import focusfl as ff
from focusfl.core import Upload, scale
from focusfl.engines.optimiser import LocalOptimiser


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"optimiser": "sgd"}, torch.optim.SGD),
        ({"optimiser": "sgd", "momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9)),
        ({"optimiser": "adam"}, torch.optim.Adam),
        ({"optimiser": "adamw"}, torch.optim.AdamW),
        ({"optimiser": "rmsprop"}, torch.optim.RMSprop),
        ({"optimiser": "rmsprop", "momentum": 0.9}, partial(torch.optim.RMSprop, momentum=0.9)),
    ],
)
def test_the_same_steps_as_torch(options, theirs, decay):
    rng = torch.Generator().manual_seed(0)
    w = torch.randn(3, 4, generator=rng, dtype=torch.double)
    parameter = torch.nn.Parameter(w.clone())
    reference = theirs([parameter], lr=0.05, weight_decay=decay)
    ours = LocalOptimiser(ff.Train(lr=0.05, weight_decay=decay, **options), 0.05)
    for _ in range(30):
        parameter.grad = torch.randn(3, 4, generator=rng, dtype=torch.double)
        ours.step({"w": w}, {"w": parameter.grad.clone()})
        reference.step()
    assert torch.allclose(w, parameter.detach(), atol=1e-12, rtol=0)


class AtRate(ff.FedAvg):
    """FedAvg whose agents train with a quarter of the learning rate."""

    def local(self, server, state, agent):
        theta = agent.sgd(server["w"], rate=0.25)
        return state, Upload(add={"theta": scale(theta, agent.n), "n": agent.n}, each={})


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_quarter_of_the_rate_is_a_quarter_of_the_learning_rate(engine):
    fed, options = ff.data.synthetic(), {"rounds": 2, "engine": engine, "bayes": "none"}
    one = ff.fit(AtRate(), fed, train=ff.Train(lr=0.2), **options)
    other = ff.fit(ff.FedAvg(), fed, train=ff.Train(lr=0.05), **options)
    assert torch.equal(one.loss, other.loss)
