"""Stacks of models: scale them, average them, mix their predictions, take one out."""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.core.algorithm import Models, Networks, Predictor, State


def scale(w: Models, by: Tensor) -> Models:
    """Each model of the stack times its own number: by is [M] (or [], for all)."""
    return {k: v * by.reshape(by.shape + (1,) * (v.dim() - by.dim())) for k, v in w.items()}


def scale_(w: Models, by: Tensor) -> Models:
    """Like `scale`, but replaces the tensors of w one by one: half the memory where w is not needed afterwards."""
    for k in w:
        w[k] = w[k] * by.reshape(by.shape + (1,) * (w[k].dim() - by.dim()))
    return w


def mean_or_keep(w: Models, total: Models, weight: Tensor) -> Models:
    """total_m / weight_m per model; where nobody holds model m (weight_m = 0) it stays w_m. Never 0/0."""
    held = weight > 1e-20
    means = scale(total, 1 / torch.where(held, weight, 1))
    return {k: torch.where(held.reshape(-1, *(1,) * (v.dim() - 1)), means[k], v) for k, v in w.items()}


def mixture(pi: Tensor, w: Models, h: Predictor, drop: float = 1e-4) -> Tensor:
    """sum_m pi_m h(w_m), eq. 7. Models whose labels are less than `drop` together are skipped."""
    counts = pi > drop / len(pi)
    share = torch.where(counts, pi, 0)
    return torch.einsum("m,mnc->nc", share / share.sum(), h(w, counts))


def row(tree: State, e: Tensor) -> State:
    """Row e (a tensor []) of every tensor. Plain indexing would not vmap."""
    return {
        k: row(v, e) if isinstance(v, dict) else v.index_select(0, e.reshape(1).to(v.device)).squeeze(0)
        for k, v in tree.items()
    }


def one_of(w: Models, m: Tensor) -> Models:
    """Model m (a tensor []) as a stack of one."""
    return {k: v.index_select(0, m.reshape(1).to(v.device)) for k, v in w.items()}


def one_hot(m: Tensor, M: int) -> Tensor:
    """[] -> [M], or [C] -> [C, M]: 1.0 at m, else 0.0."""
    return (m.unsqueeze(-1) == torch.arange(M, device=m.device)).float()


def vector(w: Models) -> Tensor:
    """Each model of the stack as a vector: [M, P]."""
    return torch.cat([v.reshape(len(v), -1) for v in w.values()], 1)


def separate(w: Models, learnt: tuple[str, ...]) -> tuple[Models, Models]:
    """What training changes, and the batch statistics. Lengths and angles make sense for the former only."""
    return {k: w[k] for k in learnt}, {k: v for k, v in w.items() if k not in learnt}


def double(v: Tensor) -> Tensor:
    """In double precision, on devices that support it."""
    return v if v.device.type == "mps" else v.double()


def clustered_start(networks: Networks, M: int, init: str) -> Models:
    """M first models: "independent" random networks, or "tied": one, M copies, 1 % noise added."""
    return networks.independent(M) if init == "independent" else networks.copies(M, noise=0.01)
