"""Engines run an algorithm's `local` over the agents. Same rows, same order, same numbers on each."""

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
VECTORISE_BELOW = 5e6  # multiply-adds of one local step below which many agents at once are faster (measured)


def choose(name: str, task: Task, fed: Federation, train: Train) -> type[Engine]:
    """The engine of that name; `auto` picks vectorised for small plain networks, else serial."""
    if name != "auto":
        if name not in NAMES:
            raise InputError(f"engine = {name!r}: {nearest(name, [*NAMES, 'auto'])}")
        return _flower() if name == "flower" else ENGINES[name]
    return Vectorised if task.stateless and step_work(task, fed, train) < VECTORISE_BELOW else Serial


def _flower() -> type[Engine]:
    """Imported only when asked for: Flower and Ray are large, and optional."""
    try:
        from focusfl.flower.simulation import Flower
    except ImportError as error:
        raise InputError(f'engine = flower needs {error.name}: pip install "focusfl[flower]"') from error
    return Flower


__all__ = ["ENGINES", "NAMES", "Engine", "Replies", "Scores", "choose"]
