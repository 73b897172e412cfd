"""The excess loss of every test example of a run: how certain its means are, and kept to compare methods in pairs.

FOLDER/examples.safetensors    excess [N] float32, agent e has examples at[e] to at[e + 1]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.special import stdtrit
from torch import Tensor

from focusfl.fairness import intervals
from focusfl.util import files
from focusfl.util.errors import InputError

NAME = "examples.safetensors"


class Examples(NamedTuple):
    """Loss less best loss of each test example, the agents one after the other."""

    excess: Tensor  # [N]
    at: Tensor  # [E + 1]


def mean(one: Examples) -> Tensor:
    """Each agent's excess risk. [E]"""
    return _total(one.excess, one.at) / one.at.diff()


def covariance(one: Examples, other: Examples) -> Tensor:
    """Of the means of two methods on the same examples. [E]

    >>> from torch import tensor
    >>> at = tensor([0, 2])
    >>> covariance(Examples(tensor([1.0, 3.0]), at), Examples(tensor([1.0, 5.0]), at))
    tensor([2.], dtype=torch.float64)
    """
    n = one.at.diff()
    left, right = (v.excess.double() - mean(v).repeat_interleave(n) for v in (one, other))
    return _total(left * right, one.at) / (n * (n - 1))


def standard_error(one: Examples) -> Tensor:
    """Of each agent's mean, [E]; wider for few examples, as Student's t is wider than the normal. NaN for one."""
    wider = stdtrit(one.at.diff().numpy() - 1.0, 0.975) / stdtrit(float("inf"), 0.975)
    return covariance(one, one).sqrt() * torch.from_numpy(wider)


def correlation(one: Examples, other: Examples) -> float:
    """Of the noise of two methods' FAA."""
    each = [(mean(v), covariance(v, v).sqrt()) for v in (one, other)]
    return intervals.correlation(each[0], each[1], covariance(one, other))


def gap_error(one: Examples, other: Examples) -> Tensor:
    """The standard error of each agent's mean less the other's, on the same examples. [E]"""
    return standard_error(Examples(one.excess - other.excess, one.at))


def save(folder: Path, one: Examples) -> None:
    tensors = {"excess": one.excess.float().contiguous(), "at": one.at}
    files.write(folder / NAME, lambda temporary: save_file(tensors, temporary))


def load(folder: Path) -> Examples | None:
    """None: there are none, as in runs of older versions."""
    found = read(folder / NAME, "excess", "at")
    return None if found is None else Examples(*found)


def read(path: Path, *names: str) -> list[Tensor] | None:
    """Those tensors of a file; None where there is no file."""
    if not path.exists():
        return None
    try:
        found = load_file(path)
        return [found[name] for name in names]
    except (SafetensorError, KeyError, OSError) as error:
        why = f"truncated or not of focusfl ({error})"
        raise InputError(f"{path}: {why}; delete it, and there is no interval from it") from error


def correlations(folder: Path, others: dict[str, Path]) -> dict[str, float]:
    """Of the run in `folder` with other methods' on the same examples, by method; of those that kept theirs."""
    return {method: correlation(one, other) for method, one, other in _pairs(folder, others)}


def gap_errors(folder: Path, others: dict[str, Path]) -> dict[str, list[float]]:
    """The same for the standard errors of the differences between them."""
    return {method: gap_error(one, other).tolist() for method, one, other in _pairs(folder, others)}


def _pairs(folder: Path, others: dict[str, Path]) -> Iterator[tuple[str, Examples, Examples]]:
    one = load(folder)
    for method, path in others.items():
        other = load(path)
        if one is not None and other is not None and torch.equal(other.at, one.at):
            yield method, one, other


def _total(values: Tensor, at: Tensor) -> Tensor:
    n = at.diff()
    who = torch.repeat_interleave(torch.arange(len(n)), n)
    return torch.zeros(len(n), dtype=torch.double).index_add_(0, who, values.double())
