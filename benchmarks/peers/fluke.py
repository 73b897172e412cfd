"""fluke: FedAVG with its FastDataLoader, weighted, evaluation off. It counts epochs, not steps."""

from __future__ import annotations

import torch
from peers.work import Work, network, weights
from peers.worker import FOREVER, Turn, import_torchvision
from torch import nn

import_torchvision()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402

PACKAGE = "fluke-fl"


class Between(FederationObserver):
    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def start_round(self, round: int, global_model: nn.Module) -> None:
        if not self.turn(lambda: weights(global_model)):
            raise SystemExit


def run(work: Work, turn: Turn) -> None:
    data, epochs = work.by_epochs()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    E = len(x)
    agents = [
        FastDataLoader(x[e], y[e], num_labels=10, batch_size=work.batch, shuffle=not work.full) for e in range(E)
    ]
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    how = DDict(
        model=network(work),
        client=DDict(
            batch_size=work.batch,
            local_epochs=epochs,
            loss=nn.CrossEntropyLoss,
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    algorithm = FedAVG(E, DataSplitter(DummyDataContainer(agents, [None] * E, None, 10)), how)
    algorithm.set_callbacks([Between(turn)])
    algorithm.run(FOREVER, eligible_perc=1)
