"""pfl: FederatedAveraging on a SimulatedBackend, one process, weighted by data points.

Its local training stops at the end of an agent's data, whatever `local_num_steps` says: hence epochs.
It does not shuffle. The first round (not timed) evaluates: pfl has no way to say never.
"""

from __future__ import annotations

import torch
from peers.work import Work, network, weights
from peers.worker import FOREVER, Turn
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

PACKAGE = "pfl"


class Network(nn.Module):
    """A network with the two methods pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.eval()
        return {"loss": Weighted(nn.functional.cross_entropy(self.net(x), y, reduction="sum").item(), len(y))}


class Between(TrainingProcessCallback):
    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.turn(lambda: weights(model.pytorch_model))
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        return not self.turn(lambda: weights(model.pytorch_model)), Metrics()


def run(work: Work, turn: Turn) -> None:
    data, epochs = work.by_epochs()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    agents = [PyTorchTensorDataset((x[e], y[e]), user_id=str(e)) for e in range(len(x))]
    fed = FederatedDataset(agents.__getitem__, get_user_sampler("minimize_reuse", range(len(x))))
    net = Network(network(work))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=len(x),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(fed, fed, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=epochs,
            local_learning_rate=work.lr,
            local_batch_size=None if work.full else work.batch,
        ),
        callbacks=[Between(turn)],
        send_metrics_to_platform=False,
    )
