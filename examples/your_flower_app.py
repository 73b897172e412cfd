"""A Flower app of your own with focusfl inside: your data, your network, FOCUS.

In an app's pyproject.toml: serverapp = "your_flower_app:server", clientapp = "your_flower_app:client".
"""

import torch
from flwr.app import Context
from torch import nn

import focusfl as ff
from focusfl.flower import Run, client_app, server_app

AGENTS, ROUNDS = 4, 5
FOCUS = ff.Focus(M=2, init="independent")
TRAIN = ff.Train(lr=0.2, steps=5)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def load(context: Context):  # type: ignore[no-untyped-def]
    """This node's examples: here made up, half of the agents mean the opposite; yours come from its own disk."""
    e = int(context.node_config["partition-id"])
    draws = torch.Generator().manual_seed(e)
    x = torch.randn(200, 2, generator=draws)
    y = ((x.sum(1) > 0) ^ (e >= AGENTS // 2)).long()
    return (x[:150], y[:150]), (x[150:], y[150:])


client = client_app(FOCUS, network, load, classes=2, train=TRAIN)
RUN = Run(FOCUS, network, AGENTS, ROUNDS, classes=2, train=TRAIN)
server = server_app(RUN)
