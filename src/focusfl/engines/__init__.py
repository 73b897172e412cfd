"""Engines: they run an algorithm's `local` and `predict` over the agents. All give the same numbers.

Here belongs how agents are run, not what they compute: which examples are in which step (`plan`), local training of
one agent (`one_agent`) or of many at once (`vectorised`), and fast gradients (`kernels`).
"""

from __future__ import annotations

from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.engines.base import Engine, Replies, Scores, step_work
from focusfl.engines.serial import Serial
from focusfl.engines.vectorised.engine import Vectorised
from focusfl.models.task import Task
from focusfl.util.errors import InputError, nearest

ENGINES: dict[str, type[Engine]] = {"serial": Serial, "vectorised": Vectorised}
NAMES = (*ENGINES, "flower")
MAX_VECTORISED_WORK = (
    5e6  # multiply-adds of a local step up to which running many agents at once is faster (measured)
)


def choose(name: str, task: Task, fed: Federation, train: Train) -> type[Engine]:
    """Return the engine with this name; "auto" picks vectorised for small stateless networks, else serial.

    Args:
        name: "serial", "vectorised", "flower" or "auto".
        task: The network and its loss.
        fed: The agents' data.
        train: The options of local training.

    Raises:
        InputError: There is no such engine, or Flower is not installed.
    """
    if name == "auto":
        small = step_work(task, fed, train) < MAX_VECTORISED_WORK
        return Vectorised if task.stateless and small else Serial
    if name in ENGINES:
        return ENGINES[name]
    if name != "flower":
        raise InputError(f"engine = {name!r}: {nearest(name, [*NAMES, 'auto'])}")
    try:  # imported only on demand: Flower and Ray are large and optional
        from focusfl.flower.simulation import Flower
    except ImportError as error:
        raise InputError(f'engine = flower needs {error.name}: pip install "focusfl[flower]"') from error
    return Flower


__all__ = ["ENGINES", "NAMES", "Engine", "Replies", "Scores", "choose"]
