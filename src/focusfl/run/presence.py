"""Presence: which agents can participate in which round, where agents join later or leave early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import numpy as np

from focusfl.engines.plan import Ints
from focusfl.util.errors import InputError, require

Events = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Presence:
    """An agent is present from the round in which it joins to the one before it leaves.

    Attributes:
        joins: Pairs of an agent and the first round in which it is present. Rounds count from 1. An agent that is
            not named is present from the start.
        leaves: Pairs of an agent and the first round in which it is no longer present. An agent that is not named
            stays to the end.

    Example:
        >>> presence = Presence.of({2: 3}, {0: 2}, E=3, rounds=4)
        >>> [presence.agents(t, E=3).tolist() for t in range(4)]
        [[0, 1], [1], [1, 2], [1, 2]]
    """

    joins: Events = ()
    leaves: Events = ()

    @staticmethod
    def of(joins: Mapping[int, int] | None, leaves: Mapping[int, int] | None, E: int, rounds: int) -> Presence:
        """Return the presence that `Settings.joins` and `Settings.leaves` describe.

        Args:
            joins: For an agent, the first round in which it is present.
            leaves: For an agent, the first round in which it is no longer present.
            E: Number of agents.
            rounds: Number of rounds.

        Raises:
            InputError: If an agent or a round does not exist, an agent leaves before it joins, or no agent is
                present in some round.
        """
        checked: dict[str, dict[int, int]] = {}
        for name, events in (("joins", joins), ("leaves", leaves)):
            try:
                checked[name] = {index(e): index(t) for e, t in ({} if events is None else events).items()}
            except (AttributeError, TypeError) as error:
                raise InputError(f"{name} = {events!r}: expected one round per agent, as in {{7: 40}}") from error
            for e, t in checked[name].items():
                if not 0 <= e < E:
                    raise InputError(f"{name}.{e} = {t}: there are agents 0 to {E - 1}")
                require(f"{name}.{e}", t, 1 <= t <= rounds, f"a round from 1 to {rounds}")
        first, last = checked["joins"], checked["leaves"]
        for e, t in last.items():
            start = first.get(e, 1)
            require(f"leaves.{e}", t, t > start, f"a round after {start}, its first")
        presence = Presence(tuple((e, t) for e, t in sorted(first.items()) if t > 1), tuple(sorted(last.items())))
        for t in sorted({1, *first.values(), *last.values()}):  # between these nothing changes
            if not len(presence.agents(t - 1, E)):
                raise InputError(f"no agent is present in round {t}: let an agent join earlier or leave later")
        return presence

    def agents(self, t: int, E: int) -> Ints:
        """Return the agents that are present in round t = 0, 1, ..., ascending."""
        present = np.ones(E, dtype=bool)
        present[[e for e, first in self.joins if t + 1 < first]] = False
        present[[e for e, gone in self.leaves if t + 1 >= gone]] = False
        return np.flatnonzero(present)

    def joining(self, t: int) -> Ints:
        """Return the agents whose first round is t = 1, 2, ..."""
        return np.array([e for e, first in self.joins if first == t + 1], dtype=np.int64)


EVERYBODY = Presence()  # all agents, in every round
