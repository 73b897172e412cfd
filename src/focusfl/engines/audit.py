"""Checks of what agents claim: an upload that no honest agent could send is refused, by name.

A server cannot see whether a model was trained on real data. It can see these lies:

weights    must be at least 0 and add up to what the server knows: 1 per agent, or the number of examples that the
           agent enrolled with. Without this check one agent can claim the weight of all.
shares     lie between 0 and 1.
sizes      An update may be longer than the median of the round, even many times, but not without limit: one number
           of 1e30 would end the run. An update that is short compared with the model is never too long.
variances  are not negative: batch norm would turn one into NaN at every agent.

If the server sees only a sum, the same checks apply to the sum; they show that an agent lied but not which one.
Agents then add a histogram of the size of their update, whose sum has the median. An agent can falsify it by
subtracting others' counts, so that the mean update also has a limit relative to the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from focusfl.core import Algorithm, Contribution, State, Upload, one_hot, scale
from focusfl.core.stacks import MIN_WEIGHT
from focusfl.core.tree import flatten

TOLERANCE = 0.01  # of weights, relative to their total: above rounding, and too little to do harm
SHARE_NOISE, SUM_NOISE = 1e-5, 1e-6  # rounding below 0, per agent: of shares, of weights in a secure sum
VARIANCE_NOISE = 1e-6  # rounding below 0 of a variance; batch norm adds 1e-5 to it
MAX_RELATIVE_SIZE = 30.0  # of an update, relative to the median of the round; of honest agents at most 14 was seen
SHORT = 1e-3  # relative to the length of the model: smaller medians count as this (of two agents: as the length)
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
    few = 1 / SHORT if len(size) < 3 else 1.0  # two agents have no majority: only the model's length counts
    for name in least:
        middle = max(_lower_median([size[e][name] for e in size]), few * least[name])
        for e in size:
            if size[e][name] > MAX_RELATIVE_SIZE * middle > 0:
                found.setdefault(e, f"its {name} is {size[e][name] / middle:.3g} times {_TYPICAL}")
    return found


def larger_than_usual(what: str, values: Mapping[int, float]) -> dict[int, str]:
    """Return the agents whose value is larger than it can be beside the others', and why; as `suspects` does.

    Args:
        what: The name of the value.
        values: One number per agent.
    """
    few = 1 / SHORT if len(values) < 3 else 1.0
    middle = max(_lower_median([abs(v) for v in values.values()]), few * SMALL_OTHERS) if values else 1.0
    too_large = {e: abs(v) / middle for e, v in values.items() if abs(v) > MAX_RELATIVE_SIZE * middle}
    return {e: f"its {what} is {times:.3g} times {_TYPICAL}" for e, times in too_large.items()}


_TYPICAL = f"as large as is usual in this round (at most {MAX_RELATIVE_SIZE:g} times)"


def false_claim(claims: Contribution, agents: int = 1) -> str:
    """Return what is impossible about an upload or a sum, whatever the others send; "" if nothing is."""
    noise = 0.0 if agents == 1 else SUM_NOISE * agents
    if claims.weight is not None:
        weight = claims.weight.double()
        total = weight.sum() if claims.total is None else claims.total.double()
        if (weight < -noise * total.sum()).any() or not torch.isfinite(weight).all():
            return f"it claims a weight of {_number(weight.min())}"
        claimed = weight.sum() if total.dim() == 0 else weight
        if ((claimed - total).abs() > TOLERANCE * total.sum()).any():
            at = (claimed - total).abs().argmax()
            claim, true = claimed.flatten()[at], total.flatten()[at]
            return f"it claims a weight of {_number(claim)} where it has {_number(true)}"
    for name, share in claims.shares.items():
        if not ((share >= -SHARE_NOISE * agents) & (share <= (1 + TOLERANCE) * agents)).all():
            worst = share.flatten()[(share - agents / 2).abs().argmax()]
            return f"its {name} is {_number(worst)}, not between 0 and {agents}"
    for name, moved in claims.change.items():
        if name.endswith("running_var") and name in claims.w:
            least = (claims.w[name].double() + moved).min()
            if least < -VARIANCE_NOISE * max(1.0, float(claims.w[name].max())):
                return f"its {name}, a variance, is {_number(least)}"
    return ""


def sizes(claims: Contribution, trainable: tuple[str, ...]) -> dict[str, float]:
    """Return the size of each part of an upload that is compared with other agents'."""
    update, statistics = _lengths(claims.change, trainable)
    others = {name: _largest(value) for name, value in claims.others.items()}
    return {"update": update, "batch statistics": statistics, **others}


def smallest_medians(claims: Contribution, trainable: tuple[str, ...]) -> dict[str, float]:
    """Return the size that smaller medians count as, for each part that `sizes` names."""
    update, statistics = (SHORT * length for length in _lengths(claims.w, trainable))
    return {"update": update, "batch statistics": statistics, **dict.fromkeys(claims.others, SMALL_OTHERS)}


def _lengths(models: Mapping[str, Tensor], trainable: tuple[str, ...]) -> tuple[float, float]:
    """Return the length of the longest model of a stack: of its trainable tensors, and of the others."""
    totals = [torch.zeros(1, dtype=torch.double), torch.zeros(1, dtype=torch.double)]
    for name, v in models.items():
        at = 0 if name in trainable else 1
        totals[at] = totals[at] + v.cpu().double().square().reshape(len(v), -1).sum(1)
    update, statistics = (math.sqrt(float(total.max())) for total in totals)
    return update, statistics


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
    claims = _without_unheld(claims)
    if lie := false_claim(claims, agents):
        return lie
    counts = histogram.double()
    whole = (counts - counts.round()).abs().max() < 1e-3
    if not whole or (counts.round() < 0).any() or int(counts.round().sum()) != agents:
        return f"its histogram of sizes does not count {agents} agents"
    middle = int((counts.cumsum(0) >= agents / 2 - 0.25).long().argmax())
    size, least = sizes(claims, trainable), smallest_medians(claims, trainable)
    for name in ("update", "batch statistics"):
        cap = max(least[name] / SHORT, 1.0)  # whatever the histogram says
        usual = min(max(2.0 ** (middle + 1 + LOG2_MIN), least[name]), cap) if name == "update" else cap
        if size[name] > MAX_RELATIVE_SIZE * usual:
            return f"its {name} is {size[name] / usual:.3g} times {_TYPICAL}"
    return ""


def _without_unheld(claims: Contribution) -> Contribution:
    """Return the contribution without the models that no agent of the sum holds: they stay as they were."""
    if claims.weight is None:
        return claims
    held = claims.weight > MIN_WEIGHT  # [m], or [1] for all
    return claims._replace(change=scale(claims.change, held.double()))
