"""Checks of what agents claim: an upload that no honest agent could send is refused, by name.

A server cannot see whether a model was trained on real data. It can see three kinds of lies:

weights   must be at least 0 and add up to what the server knows: 1 per agent, or the number of examples that the
          agent enrolled with. Without this check one agent can claim the weight of all.
shares    lie between 0 and 1.
sizes     An update may be longer than the median of the round, even many times, but not without limit: one number
          of 1e30 would end the run. An update that is short compared with the model is never too long.

If the server sees only a sum, the same checks apply to the sum; they show that an agent lied but not which one.
Agents then add a histogram of the size of their update, whose sum has the median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from focusfl.core import Algorithm, Contribution, State, Upload, one_hot
from focusfl.core.tree import flatten

TOLERANCE = 0.01  # of weights, relative to their total: above rounding, and too little to do harm
MAX_RELATIVE_SIZE = 30.0  # of an update, relative to the median of the round; of honest agents at most 11 was seen
SHORT_UPDATE = 1e-3  # relative to the length of the model: smaller medians count as this
SMALL_OTHERS = 1.0  # of losses and the like: smaller medians count as this
BINS, LOG2_MIN = 128, -64  # the histogram of sizes goes from 2^-64 to 2^64, with one bin per doubling


def suspects(
    algorithm: Algorithm,
    uploads: Mapping[int, Upload],
    view: Callable[[int], State],
    examples: Mapping[int, int],
    trainable: tuple[str, ...],
) -> dict[int, str]:
    """Return the agents whose uploads cannot be honest, and why.

    Args:
        algorithm: The method.
        uploads: The uploads of a round, by agent.
        view: Returns what an agent received.
        examples: The numbers of training examples that the agents enrolled with.
        trainable: Names of the tensors that training changes; the others are batch statistics.
    """
    found: dict[int, str] = {}
    size: dict[int, dict[str, float]] = {}
    least: dict[str, float] = {}
    for e, upload in uploads.items():
        claims = algorithm.contribution(view(e), upload, torch.tensor(float(examples[e])))
        if lie := false_claim(claims):
            found[e] = lie
        else:
            size[e], least = sizes(claims, trainable), smallest_medians(claims, trainable)
    for name in least:
        middle = max(_lower_median([size[e][name] for e in size]), least[name])
        for e in size:
            if len(size) > 1 and size[e][name] > MAX_RELATIVE_SIZE * middle > 0:
                found.setdefault(e, f"its {name} is {size[e][name] / middle:.3g} times {_TYPICAL}")
    return found


_TYPICAL = f"as large as is usual in this round (at most {MAX_RELATIVE_SIZE:g} times)"


def false_claim(claims: Contribution, agents: int = 1) -> str:
    """Return what is impossible about the weights and shares of an upload or of a sum; "" if nothing is."""
    if claims.weight is not None:
        weight = claims.weight.double()
        total = weight.sum() if claims.total is None else claims.total.double()
        slack = TOLERANCE * total.sum().abs()
        if (weight < -slack).any() or not torch.isfinite(weight).all():
            return f"it claims a weight of {_number(weight.min())}"
        claimed = weight.sum() if total.dim() == 0 else weight
        if ((claimed - total).abs() > slack).any():
            at = (claimed - total).abs().argmax()
            claim, true = claimed.flatten()[at], total.flatten()[at]
            return f"it claims a weight of {_number(claim)} where it has {_number(true)}"
    for name, share in claims.shares.items():
        if not ((share >= -TOLERANCE * agents) & (share <= (1 + TOLERANCE) * agents)).all():
            worst = share.flatten()[(share - agents / 2).abs().argmax()]
            return f"its {name} is {_number(worst)}, not between 0 and {agents}"
    return ""


def sizes(claims: Contribution, trainable: tuple[str, ...]) -> dict[str, float]:
    """Return the size of each part of an upload that is compared with other agents'."""
    update, statistics = _lengths(claims.change, trainable)
    others = {name: _largest(value) for name, value in claims.others.items()}
    return {"update": update, "batch statistics": statistics, **others}


def smallest_medians(claims: Contribution, trainable: tuple[str, ...]) -> dict[str, float]:
    """Return the size that smaller medians count as, for each part that `sizes` names."""
    update, statistics = (SHORT_UPDATE * length for length in _lengths(claims.w, trainable))
    return {"update": update, "batch statistics": statistics, **dict.fromkeys(claims.others, SMALL_OTHERS)}


def _lengths(models: Mapping[str, Tensor], trainable: tuple[str, ...]) -> tuple[float, float]:
    """Return the lengths of a stack: of its trainable tensors, and of the others."""
    squares = {k: float(v.double().square().sum()) for k, v in models.items()}
    total = sum(squares.values())
    trained = sum(square for k, square in squares.items() if k in trainable)
    return math.sqrt(trained), math.sqrt(total - trained)


def _largest(value: Tensor | State) -> float:
    leaves = flatten(value).values() if isinstance(value, dict) else [value]
    return max((float(v.double().abs().max()) for v in leaves if v.numel()), default=0.0)


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _number(value: Tensor) -> str:
    return f"{float(value):.4g}"


# If the server sees only sums


def size_histogram(claims: Contribution, trainable: tuple[str, ...]) -> Tensor:
    """Return 1 in the bin of the size of an agent's update, [BINS]. Agents add it to their upload."""
    size = sizes(claims, trainable)["update"]
    at = math.floor(math.log2(size) - LOG2_MIN) if size > 0 else 0
    return one_hot(torch.tensor(min(max(at, 0), BINS - 1)), BINS)


def false_sum(claims: Contribution, histogram: Tensor, agents: int, trainable: tuple[str, ...]) -> str:
    """Return why a sum cannot be one of honest uploads; "" if it can.

    Args:
        claims: What the sum of the uploads claims.
        histogram: The sum of the agents' histograms, [BINS].
        agents: The number of agents.
        trainable: Names of the tensors that training changes.
    """
    if lie := false_claim(claims, agents):
        return lie
    if (histogram < -0.5).any() or abs(float(histogram.sum()) - agents) > 0.5:
        return f"its histogram of sizes counts {float(histogram.sum()):.4g} agents of {agents}"
    middle = int((histogram.cumsum(0) >= agents / 2 - 0.25).long().argmax())
    size, least = sizes(claims, trainable)["update"], smallest_medians(claims, trainable)["update"]
    limit = MAX_RELATIVE_SIZE * max(2.0 ** (middle + 1 + LOG2_MIN), least)
    return f"its update is {size / limit * MAX_RELATIVE_SIZE:.3g} times {_TYPICAL}" if size > limit > 0 else ""
