"""Flower: its simulation on Ray, a node an agent, one CPU a client, two workers; strategy FedAvg, no evaluation."""

from __future__ import annotations

import logging
import os
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.work import Work, network
from peers.worker import FOREVER, Rows, Turn
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

PACKAGE = "flwr"
FILE = "PEERS_FLOWER_WORK"  # for Ray's workers
app = ClientApp()


@cache
def data(path: str) -> tuple[Work, list[TensorDataset]]:
    """Read once in each of Ray's workers."""
    work = Work.read(path)
    return work, [
        TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(work.x, work.y, strict=True)
    ]


@app.train()
def train(message: Message, context: Context) -> Message:
    work, agents = data(os.environ[FILE])
    mine = agents[int(context.node_config["partition-id"])]
    net = network(work)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    sampler = RandomSampler(mine, num_samples=work.steps * work.batch)  # shuffles anew when it is through
    sizes: Rows = Counter()
    for x, y in DataLoader(mine, batch_size=work.batch, sampler=sampler):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
        sizes[len(y)] += 1
    metrics = {"num-examples": len(mine), **{f"steps of {size}": n for size, n in sizes.items()}}
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=reply, reply_to=message)


def run(work: Work, turn: Turn) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    path = Path("flower_work.npz").absolute()
    work.write(path)
    os.environ[FILE] = str(path)
    steps: Rows = Counter()

    def count(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        if len(replies) < len(work.x):
            raise RuntimeError(f"{len(replies)} of {len(work.x)} nodes answered")
        steps.clear()
        for reply in replies:
            for name, n in reply["metrics"].items():
                if name.startswith("steps of "):
                    steps[int(name.split()[-1])] += n
        return MetricRecord()

    def between(t: int, arrays: ArrayRecord) -> None:
        if not turn(arrays.to_numpy_ndarrays, lambda: steps):
            raise SystemExit

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        E = len(work.x)  # all nodes, also while some still register
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=E, min_available_nodes=E, train_metrics_aggr_fn=count
        )
        first = ArrayRecord(network(work).state_dict())
        strategy.start(grid, first, num_rounds=FOREVER, evaluate_fn=between)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, app, len(work.x), backend_config=resources)
