"""The course of a run: what the server tells the nodes of its learning rate and of its best round.

With early stopping, or train.lr = "auto", a run may return to its best round. The agents' states stay at the nodes,
so every node keeps its state of that round and returns to it when the server says so. An absent node learns it
later: every message carries the whole course.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from focusfl.flower.protocol.wire import Refused

MAX_RETURNS = 10_000  # a run returns after several rounds without a lower loss, and after a few explosions
LATEST = 2**31 - 1  # a round later than any other: predictions are made after the last one


class Course(NamedTuple):
    """Where a run is.

    Attributes:
        rate: The factor of the learning rate.
        best: The round to which the run may return, 0 for the start; None if it never returns.
        returns: The rounds to which it has returned.
        last: The last round after training, from 0, once there was one; -1 before.
    """

    rate: float = 1.0
    best: int | None = None
    returns: tuple[int, ...] = ()
    last: int = -1

    def fields(self) -> dict[str, Any]:
        """Return what a message says of it; nothing of a run that never returns."""
        said: dict[str, Any] = {} if self.rate == 1 else {"rate": self.rate}
        said |= {} if self.best is None else {"best": self.best}
        said |= {"returns": list(self.returns)} if self.returns else {}
        return said | ({} if self.last < 0 else {"last": self.last})

    @staticmethod
    def read(fields: Mapping[str, Any], auto: bool) -> Course:
        """Check and return what a message says.

        Args:
            fields: The fields of the message.
            auto: Whether the learning rate of the run is "auto": otherwise its factor is 1.

        Raises:
            Refused: If a field cannot be that of a run; the message names it.
        """
        rate, best, last = fields.get("rate", 1.0), fields.get("best"), fields.get("last", -1)
        if type(rate) not in (int, float) or not 0 < rate <= 1:  # NaN fails this comparison
            raise Refused(f"rate = {str(rate)[:40]}: expected the learning rate's factor, above 0 and at most 1")
        if rate != 1 and not auto:
            raise Refused(f'rate = {rate:g}: expected 1, since train.lr of this run is not "auto"')
        if best is not None and not _whole(best):
            raise Refused(f"best = {str(best)[:40]}: expected a round, a whole number from 0")
        if last != -1 and not _whole(last):
            raise Refused(f"last = {str(last)[:40]}: expected a round, a whole number from 0")
        returns = fields.get("returns", [])
        if not isinstance(returns, list) or len(returns) > MAX_RETURNS or not all(_whole(v) for v in returns):
            raise Refused(f"returns: expected at most {MAX_RETURNS} rounds, whole numbers from 0")
        return Course(float(rate), best, tuple(returns), last)


STRAIGHT = Course()  # of a run that never returns


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0
