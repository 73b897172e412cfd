"""Operations on stacks of models: scale and average them, mix their predictions, select one."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from focusfl.core.algorithm import Algorithm, Contribution, Models, Networks, Predictor, State

MIN_WEIGHT = 1e-20  # a model with less total weight counts as held by no agent


def broadcast(by: Tensor, v: Tensor) -> Tensor:
    """Return `by` with axes of length 1 appended, so that it multiplies the leading axes of v."""
    return by.reshape(by.shape + (1,) * (v.dim() - by.dim()))


def scale(w: Models, by: Tensor, in_place: bool = False) -> Models:
    """Multiply each model by a number of its own.

    Args:
        w: The models.
        by: One factor per model, [M], or [] for all.
        in_place: Replace the tensors of w one by one. This halves the memory if w is not needed afterwards.

    Example:
        >>> scale({"a": torch.ones(2, 3)}, torch.tensor([2.0, 3.0]))["a"][:, 0]
        tensor([2., 3.])
    """
    scaled: Models = w if in_place else {}
    for k in w:
        scaled[k] = w[k] * broadcast(by, w[k])
    return scaled


def mean_or_keep(w: Models, total: Models, weight: Tensor) -> Models:
    """Return total_m / weight_m for each model, or w_m if no agent holds model m (weight_m = 0).

    Args:
        w: The models before.
        total: The weighted sums of the agents' models.
        weight: The sums of the weights, [M].
    """
    held = weight > MIN_WEIGHT
    means = scale(total, 1 / torch.where(held, weight, 1))
    return {k: torch.where(broadcast(held, v), means[k], v) for k, v in w.items()}


def weighted_contribution(w: Models, sums: Models, weight: Tensor, total: Tensor) -> Contribution:
    """Return the contribution of models that are averaged with weights, from the sums that `mean_or_keep` divides.

    Args:
        w: The models before.
        sums: The sums over the agents of weight_m theta_m.
        weight: The sums of the weights, [M], or [1] for all models.
        total: What the weights must add up to, [], or what each must be, [M].

    Example:
        >>> w, sums, n = {"a": torch.ones(1, 1)}, {"a": torch.tensor([[9.0]])}, torch.tensor([3.0])
        >>> weighted_contribution(w, sums, n, total=n.sum()).change
        {'a': tensor([[2.]], dtype=torch.float64)}
    """
    by = double(weight)
    moved = {k: double(sums[k]) - broadcast(by, v) * double(v) for k, v in w.items()}
    return Contribution(w, scale(moved, 1 / by.clamp_min(MIN_WEIGHT)), weight, total)


def mixture(pi: Tensor, w: Models, h: Predictor, drop: float = 1e-4) -> Tensor:
    """Return sum_m pi_m h(w_m), eq. 7.

    Args:
        pi: The labels, [M].
        w: The models.
        h: Returns the predictions of models.
        drop: Models are skipped if their labels are at most drop / M.
    """
    used = pi > drop / len(pi)
    share = torch.where(used, pi, 0)
    return torch.einsum("m,mnc->nc", share / share.sum(), h(w, used))


@overload
def row(tree: Tensor, e: Tensor) -> Tensor: ...
@overload
def row(tree: State, e: Tensor) -> State: ...
def row(tree: Tensor | State, e: Tensor) -> Tensor | State:
    """Return row e (a tensor []) of a tensor or of every tensor in a tree. Unlike plain indexing, this vmaps.

    Example:
        >>> row(torch.tensor([5, 6, 7]), torch.tensor(1))
        tensor(6)
    """
    if isinstance(tree, dict):
        return {k: row(v, e) for k, v in tree.items()}
    return tree.index_select(0, e.reshape(1).to(tree.device)).squeeze(0)


def select_model(w: Models, m: Tensor) -> Models:
    """Return model m (a tensor []) as a stack of one."""
    return {k: v.index_select(0, m.reshape(1).to(v.device)) for k, v in w.items()}


def one_hot(m: Tensor, M: int) -> Tensor:
    """Return 1.0 at m and 0.0 elsewhere: [] -> [M], or [C] -> [C, M].

    Example:
        >>> one_hot(torch.tensor(1), 3)
        tensor([0., 1., 0.])
    """
    return (m.unsqueeze(-1) == torch.arange(M, device=m.device)).float()


def vector(w: Models) -> Tensor:
    """Return each model of the stack as a vector, [M, P]."""
    return torch.cat([v.reshape(len(v), -1) for v in w.values()], 1)


def separate_statistics(w: Models, trainable: tuple[str, ...]) -> tuple[Models, Models]:
    """Return what training changes, and the batch statistics. Lengths and angles only make sense for the former."""
    return {k: w[k] for k in trainable}, {k: v for k, v in w.items() if k not in trainable}


def double(v: Tensor) -> Tensor:
    """Return v in double precision, on devices that support it."""
    return v if v.device.type == "mps" else v.double()


def clustered_start(networks: Networks, M: int, init: str) -> Models:
    """Return M first models: "independent" random networks, or "tied" copies of one with 1 % noise."""
    return networks.independent(M) if init == "independent" else networks.copies(M, noise=0.01)


def predicting_models(algorithm: Algorithm, view: State, state: State) -> tuple[list[Models], Tensor]:
    """Return the models that a method predicts with for one agent, as stacks, and the shares of all of them, [K].

    The method's own `predict` is asked, with an h whose predictions name the model they come from: the prediction
    of model k is the unit vector e_k, so that a mixture of them is the vector of its shares.

    Args:
        algorithm: The method.
        view: What the agent received of the server's state.
        state: The agent's state.
    """
    found: list[Models] = []

    def asked(w: Models, only: Tensor | None = None, K: int = 0) -> Tensor:
        M, first = len(next(iter(w.values()))), sum(len(next(iter(v.values()))) for v in found)
        found.append(w)
        units = torch.zeros(M, 1, max(K, 1), device=next(iter(w.values())).device)
        if K:
            units[torch.arange(M), 0, first + torch.arange(M)] = 1.0
        return units if only is None else units * broadcast(only.to(units.dtype), units)

    algorithm.predict(view, state, asked)
    K = sum(len(next(iter(w.values()))) for w in found)
    found.clear()
    shares = algorithm.predict(view, state, lambda w, only=None: asked(w, only, K))[0]
    return found, shares
