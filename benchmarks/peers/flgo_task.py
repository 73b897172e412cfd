"""What FLGo wants to know of a task: each client's data, the network, the loss. FLGo copies this file."""

from __future__ import annotations

from typing import Any

import torch
from peers.work import Work, network
from torch import Tensor, nn
from torch.utils.data import TensorDataset

work = Work.read("flgo_work.npz")
train_data = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(work.x, work.y, strict=True)]
val_data = test_data = None


def data_to_device(batch: list[Tensor], device: torch.device) -> list[Tensor]:
    return [part.to(device) for part in batch]


def compute_loss(model: nn.Module, batch: list[Tensor], device: torch.device) -> dict[str, Tensor]:
    x, y = data_to_device(batch, device)
    return {"loss": nn.functional.cross_entropy(model(x), y)}


def eval(model: nn.Module, loader: Any, device: torch.device) -> dict[str, float]:
    return {}


def get_model() -> nn.Module:
    return network(work)
