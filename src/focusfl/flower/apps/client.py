"""client_app: a node, from an algorithm, a model and a function that loads the node's data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import Tensor

from focusfl.algorithms import adapted, decide_weights
from focusfl.core import Algorithm, Data
from focusfl.core.train import Train
from focusfl.data.check import as_data, check_agents
from focusfl.fairness.scores import MetricOption
from focusfl.flower.protocol.node import Job, client
from focusfl.models.losses import LossOption
from focusfl.run.settings import Settings
from focusfl.run.setup import Model

Load = Callable[[Context], tuple[Any, Any]]
"""A function from a node's context to its (x, y) for training and its (x, y) for testing, arrays or tensors."""


def client_app(
    algorithm: Algorithm,
    model: Model,
    load: Load,
    *,
    classes: int | None,
    train: Train | None = None,
    secure: bool = False,
    loss: LossOption = None,
    metrics: MetricOption = (),
    validation: float | None = None,
) -> ClientApp:
    """Return the ClientApp. Server and nodes need the same algorithm, model and training options.

    Args:
        algorithm: The method.
        model: A function that makes the network (called under the run's seed), or a torch.nn.Module.
        load: Loads the node's data, once per run; it receives Flower's context, and `context.node_config` says
            which node this is. What it raises is logged at the node only.
        classes: Number of classes; None for regression.
        train: Options of local training.
        loss: The loss, as in `Settings`; the server's deployment needs the same one.
        metrics: Measured on the node's test data, as in `Settings`: only the numbers are sent. The server's
            deployment needs the same ones.
        validation: Share of the node's training examples that it sets aside, as in `Settings`; the server's
            deployment needs the same.
        secure: Uploads are masked: the server sees only their sum (docs/secure-sums.md).
    """
    settings = Settings(train=train or Train(), secure=secure, loss=loss, metrics=metrics, validation=validation)

    def make_job(context: Context) -> Job:
        training, testing = checked_pair(load(context), classes)
        method = adapted(decide_weights(algorithm, by_n=False), by_default=False)
        return Job(method, model, settings, training, testing, classes)

    return client(make_job)


def checked_pair(pair: tuple[Any, Any], classes: int | None) -> tuple[Data, Data]:
    """Check and return a node's training and test data. In regression, whole-number labels become floats."""
    tokens = isinstance(pair[0][0], Tensor) and not pair[0][0].is_floating_point()
    training, testing = (as_data("the node's data", part, tokens) for part in pair)
    if classes is None:
        training, testing = (Data(part.x, part.y.float()) for part in (training, testing))
    check_agents([training, testing], classes, "training (agent 1: test)")
    return training, testing
