"""Agents come and go: who is there in which round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import numpy as np

from focusfl.engines.plan import Ints
from focusfl.util.errors import InputError, require

When = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Presence:
    """An agent is there from the round it joins in up to the one before it leaves; who is not named, always.

    >>> presence = Presence.of({2: 3}, {0: 2}, E=3, rounds=4)
    >>> [presence.there(t, E=3).tolist() for t in range(4)]
    [[0, 1], [1], [1, 2], [1, 2]]
    """

    joins: When = ()  # agent, the first round it takes part in; these two count rounds from 1
    leaves: When = ()  # agent, the first round it no longer takes part in

    @staticmethod
    def of(joins: Mapping[int, int] | None, leaves: Mapping[int, int] | None, E: int, rounds: int) -> Presence:
        """Checked: agents that exist, rounds of the run, and somebody there in each."""
        first, last = _checked("joins", joins, E, rounds), _checked("leaves", leaves, E, rounds)
        for e, t in last.items():
            begin = first.get(e, 1)
            require(f"leaves.{e}", t, t > begin, f"a round after {begin}, its first")
        made = Presence(tuple((e, t) for e, t in sorted(first.items()) if t > 1), tuple(sorted(last.items())))
        for t in sorted({1, *first.values(), *last.values()}):  # between these nothing changes
            if not len(made.there(t - 1, E)):
                raise InputError(f"nobody is there in round {t}: let an agent join sooner or leave later")
        return made

    def there(self, t: int, E: int) -> Ints:
        """The agents of round t = 0, 1, ..., ascending."""
        here = np.ones(E, dtype=bool)
        here[[e for e, first in self.joins if t + 1 < first]] = False
        here[[e for e, gone in self.leaves if t + 1 >= gone]] = False
        return np.flatnonzero(here)

    def joining(self, t: int) -> Ints:
        """Who is there from round t = 1, 2, ... on."""
        return np.array([e for e, first in self.joins if first == t + 1], dtype=np.int64)


EVERYBODY = Presence()


def _checked(name: str, given: Mapping[int, int] | None, E: int, rounds: int) -> dict[int, int]:
    try:
        found = {index(e): index(t) for e, t in ({} if given is None else given).items()}
    except (AttributeError, TypeError) as error:
        raise InputError(f"{name} = {given!r}: expected a round for each agent, as in {{7: 40}}") from error
    for e, t in found.items():
        if not 0 <= e < E:
            raise InputError(f"{name}.{e} = {t}: there are agents 0 to {E - 1}")
        require(f"{name}.{e}", t, 1 <= t <= rounds, f"a round from 1 to {rounds}")
    return found
