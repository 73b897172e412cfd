"""FedLab: FedAvg in its standalone pipeline, clients one after the other, data in torch's DataLoader.

It counts epochs, and its FedAvg averages without weights: the same here, where all agents have as many examples.
"""

from __future__ import annotations

import torch
from peers.work import Work, network, weights
from peers.worker import Turn, import_torchvision
from torch.utils.data import DataLoader, TensorDataset

import_torchvision()

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402

PACKAGE = "fedlab"


class Agents(FedDataset):
    def __init__(self, work: Work) -> None:
        self.shuffle = not work.full
        x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.agents = [TensorDataset(x[e], y[e]) for e in range(len(x))]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        return DataLoader(self.agents[id], batch_size=batch_size, shuffle=self.shuffle)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        """Not timed here."""


def run(work: Work, turn: Turn) -> None:
    data, epochs = work.by_epochs()
    net = network(work)
    handler = FedAvgServerHandler(net, global_round=0, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(net, num_clients=len(work.x))
    trainer.setup_dataset(Agents(data))
    trainer.setup_optim(epochs, work.batch, work.lr)
    pipeline = Pipeline(handler, trainer)
    while turn(lambda: weights(handler.model)):
        handler.global_round += 1
        pipeline.main()
