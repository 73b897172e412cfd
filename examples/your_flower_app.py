"""A Flower app of your own that trains with focusfl: your data, your network, FOCUS.

Name it in the app's pyproject.toml: serverapp = "your_flower_app:server", clientapp = "your_flower_app:client".
"""

import torch
from flwr.app import Context
from torch import Tensor, nn

import focusfl as ff
from focusfl.flower import Deployment, client_app, server_app

AGENTS, ROUNDS, CLASSES = 4, 5, 2
FOCUS = ff.Focus(M=2, init="independent")
TRAIN = ff.Train(lr=0.2, steps=5)
Examples = tuple[Tensor, Tensor]


def network() -> nn.Module:
    """Return the network that every agent trains."""
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def load(context: Context) -> tuple[Examples, Examples]:
    """Return this node's training and test examples; your function reads them from the node's own disk.

    These are made up. Half of the agents have the opposite labels, so there are two clusters to find.
    """
    e = int(str(context.node_config["partition-id"]))
    generator = torch.Generator().manual_seed(e)
    x = torch.randn(200, 2, generator=generator)
    y = ((x.sum(1) > 0) ^ (e >= AGENTS // 2)).long()
    return (x[:150], y[:150]), (x[150:], y[150:])


client = client_app(FOCUS, network, load, classes=CLASSES, train=TRAIN)
DEPLOYMENT = Deployment.of(FOCUS, network, AGENTS, CLASSES, rounds=ROUNDS, train=TRAIN)
server = server_app(DEPLOYMENT)
