"""One paper, one file. An algorithm imports `focusfl.core` alone and never knows which engine runs it."""

from focusfl.algorithms.fedavg import FedAvg
from focusfl.algorithms.focus import Focus
from focusfl.algorithms.local import Local
from focusfl.core import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {"focus": Focus, "fedavg": FedAvg, "local": Local}

__all__ = ["ALGORITHMS", "FedAvg", "Focus", "Local"]
