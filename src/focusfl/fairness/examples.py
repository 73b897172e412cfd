"""The excess loss of every test example of a run: how certain the means are, and how methods compare in pairs.

FOLDER/examples.safetensors    excess [N] float32; agent e has examples at[e] to at[e + 1]
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from focusfl.fairness import intervals
from focusfl.fairness.scores import defined
from focusfl.util import sealed
from focusfl.util.errors import InputError

NAME = "examples.safetensors"


class Examples(NamedTuple):
    """Loss minus best loss of each test example, agent after agent."""

    excess: Tensor  # [N]
    at: Tensor  # [E + 1]


def agent_means(one: Examples) -> Tensor:
    """Return each agent's excess risk. [E]"""
    return _agent_sums(one.excess, one.at) / one.at.diff()


def covariance(one: Examples, other: Examples) -> Tensor:
    """Return the covariance of the agents' means under two methods, on the same examples. [E]

    >>> from torch import tensor
    >>> at = tensor([0, 2])
    >>> covariance(Examples(tensor([1.0, 3.0]), at), Examples(tensor([1.0, 5.0]), at))
    tensor([2.], dtype=torch.float64)
    """
    n = one.at.diff()
    left, right = (v.excess.double() - agent_means(v).repeat_interleave(n) for v in (one, other))
    return _agent_sums(left * right, one.at) / (n * (n - 1))


def standard_error(one: Examples) -> Tensor:
    """Return the standard error of each agent's mean. [E]

    It is wider for few examples, as Student's t is wider than the normal distribution, and NaN for one example.
    """
    from scipy.special import stdtrit  # takes a quarter of a second to import

    wider = stdtrit(one.at.diff().numpy() - 1.0, 0.975) / stdtrit(float("inf"), 0.975)
    return covariance(one, one).sqrt() * torch.from_numpy(wider)


def correlation(one: Examples, other: Examples) -> float:
    """Return the correlation of the noise of two methods' FAA on the same examples.

    Args:
        one: The examples of one method.
        other: Those of the other.

    Returns:
        The correlation; 0 if one of them has no noise.
    """
    known = one.at.diff() > 1  # of one example there is no noise to be known
    if not known.any():
        return 0.0
    pairs = [(agent_means(v)[known], covariance(v, v)[known].sqrt()) for v in (one, other)]
    if not pairs[0][1].max() or not pairs[1][1].max():
        return 0.0
    r = (covariance(one, other)[known] / (pairs[0][1] * pairs[1][1])).nan_to_num(0, 0, 0).clamp(-1, 1).float()
    ends = []
    for x, s in pairs:
        s = s.clamp_min(1e-9 * float(s.max()))
        ends.append((s.float(), *intervals.tied(x, s, intervals.LEVEL, (x.argmax(), x.argmin()))))
    gaps, times = [], intervals.ROUGH_DRAWS
    for z, rest in zip(intervals.draws(len(r), times), intervals.draws(len(r), times, seed=1), strict=True):
        noise = z, r * z + (1 - r.square()).sqrt() * rest
        drawn = [(s * v)[:, a].amax(1) - (s * v)[:, b].amin(1) for v, (s, a, b) in zip(noise, ends, strict=True)]
        gaps.append(torch.stack(drawn))
    return float(torch.corrcoef(torch.cat(gaps, 1)).nan_to_num()[0, 1])


def compare_with(
    folder: Path, others: Mapping[str, Path], paired: Container[str]
) -> tuple[dict[str, float], dict[str, list[float | None]]]:
    """Compare a run with other methods' runs on the same examples, as far as they kept theirs.

    Args:
        folder: The run's folder.
        others: The folders of the other runs, by method.
        paired: The methods for which the standard errors of the differences are wanted.

    Returns:
        By method: the correlation of the noise of FAA; and the standard error of each agent's difference, [E], None
        for an agent with one test example.
    """
    mine = read(folder / NAME, "excess", "at")
    correlations: dict[str, float] = {}
    errors: dict[str, list[float | None]] = {}
    for method, path in others.items():
        its = read(path / NAME, "excess", "at")
        if mine is None or its is None or not torch.equal(its[1], mine[1]):
            continue
        one, other = Examples(*mine), Examples(*its)
        correlations[method] = correlation(one, other)
        if method in paired:
            errors[method] = defined(standard_error(Examples(one.excess - other.excess, one.at)))
    return correlations, errors


def save(folder: Path, one: Examples) -> None:
    """Write the examples of a run into its folder."""
    tensors = {"excess": one.excess.float().contiguous(), "at": one.at}
    sealed.write_tensors(folder / NAME, tensors)


def read(path: Path, *names: str) -> list[Tensor] | None:
    """Read tensors from a file.

    Args:
        path: The file.
        names: Which tensors.

    Returns:
        The tensors; None if there is no file, as in runs of older versions.

    Raises:
        InputError: The file is truncated or damaged, or does not hold these tensors.
    """
    if not path.exists():
        return None
    advice = "delete it, and the results have no interval from it"
    try:
        tensors, _, _ = sealed.read_tensors(path)
        return [tensors[name] for name in names]
    except sealed.Damaged as error:
        raise InputError(f"{path}: {error.reason}; {advice}") from error
    except KeyError as error:
        raise InputError(f"{path}: {error} is missing: not written by focusfl; {advice}") from error


def _agent_sums(values: Tensor, at: Tensor) -> Tensor:
    n = at.diff()
    agent = torch.repeat_interleave(torch.arange(len(n)), n)
    return torch.zeros(len(n), dtype=torch.double).index_add_(0, agent, values.double())
