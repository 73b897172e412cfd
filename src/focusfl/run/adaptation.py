"""How much of each agent's prediction is the shared model, the model adapted to its data, or a model of its own."""

from __future__ import annotations

from focusfl.algorithms import Adapted
from focusfl.core import Algorithm, State


def shares(algorithm: Algorithm, states: State) -> dict[str, list[float]] | None:
    """Return the share of each kind of candidate in each agent's prediction, [E]; None if agents do not adapt.

    Args:
        algorithm: The method.
        states: The agents' states, stacked.
    """
    if not isinstance(algorithm, Adapted):
        return None
    kinds, pi = algorithm.kinds, states["adapt"]["pi"].double().cpu()
    if len(kinds) != pi.shape[1]:
        return None
    pi = pi / pi.sum(1, keepdim=True)
    return {kind: pi[:, [k == kind for k in kinds]].sum(1).tolist() for kind in dict.fromkeys(kinds)}
