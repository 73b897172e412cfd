"""The networks that an agent predicts with, and their weights, whichever method trained them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from focusfl.core import Algorithm, State, predicting_models
from focusfl.core.tree import take
from focusfl.data.own.inputs import Inputs
from focusfl.engines.one_agent import predictor
from focusfl.models.task import Task, Weights
from focusfl.util.errors import InputError


class Members(NamedTuple):
    """A mixture: predictions are sum_k weights_k h(networks_k).

    Attributes:
        networks: The weights of each network; None where its share is 0.
        weights: The share of each network, [K].
    """

    networks: list[Weights | None]
    weights: Tensor


def members(algorithm: Algorithm, view: State, state: State) -> Members:
    """Return the networks and the shares with which a method predicts for one agent.

    Args:
        algorithm: The method.
        view: What the agent received of the server's state.
        state: The agent's state.

    Raises:
        InputError: The method does not predict with a mixture of networks.
    """
    with torch.no_grad():
        stacks, shares = predicting_models(algorithm, view, state)
    found: list[Weights] = [take(w, m) for w in stacks for m in range(len(next(iter(w.values()))))]
    K = len(found)
    if shares.shape != (K,) or not torch.isfinite(shares).all() or abs(float(shares.sum()) - 1) > 1e-4:
        raise InputError(f"{algorithm.name} does not predict with a mixture of networks: it cannot be exported")
    return Members([w if share else None for w, share in zip(found, shares.tolist(), strict=True)], shares)


class Mixture(nn.Module):
    """An agent's predictor as one torch module: raw examples in, probabilities or values out.

    Args:
        task: The network and its loss.
        mixture: The members.
        inputs: The form of the examples; their scaling becomes part of the module.
    """

    weights: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, task: Task, mixture: Members, inputs: Inputs) -> None:
        super().__init__()
        self.classes, self.used = task.classes, [w is not None for w in mixture.networks]
        self.predictions = task.predictions
        self.members = nn.ModuleList(_with_weights(task.network, w) for w in mixture.networks if w is not None)
        self.register_buffer("weights", mixture.weights.detach().clone())
        self.scaled = inputs.mean is not None and inputs.deviation is not None
        if inputs.mean is not None and inputs.deviation is not None:
            self.register_buffer("mean", inputs.mean.clone())
            self.register_buffer("deviation", inputs.deviation.clone())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.scaled:
            x = (x - self.mean) / self.deviation
        each = [self.predictions(network(x)) for network in self.members]
        skipped, found = torch.zeros_like(each[0]), iter(each)
        outputs = [next(found) if used else skipped for used in self.used]
        p = torch.einsum("m,mnc->nc", self.weights, torch.stack(outputs))
        return p.squeeze(-1) if self.classes is None else p


def _with_weights(network: nn.Module, w: Weights) -> nn.Module:
    """Return a copy of the network with these weights, which may be wider or narrower (FedMA, PFNM)."""
    network = copy.deepcopy(network).requires_grad_(False).eval()
    for name, value in w.items():
        place, _, last = name.rpartition(".")
        module = network.get_submodule(place)
        value = value.detach().clone()
        if last in module._parameters:
            module._parameters[last] = nn.Parameter(value, requires_grad=False)
        else:
            module._buffers[last] = value
    for module in network.modules():  # what torch prints, and exporters read
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    return network


def predict(algorithm: Algorithm, view: State, state: State, task: Task, x: Tensor) -> Tensor:
    """Return an agent's predictions by the method's own rule: probabilities [n, C], or values [n]."""
    with torch.no_grad():
        p = algorithm.predict(view, state, predictor(task, x))
    return (p.squeeze(-1) if task.classes is None else p).cpu()
