"""The methods: one file per paper. An algorithm uses `focusfl.core` and never knows which engine runs it."""

from collections.abc import Callable

from focusfl.algorithms.afl import AFL
from focusfl.algorithms.cfl import CFL
from focusfl.algorithms.cgsv import CGSV
from focusfl.algorithms.ditto import Ditto
from focusfl.algorithms.fedavg import FedAvg
from focusfl.algorithms.fedem import FedEM
from focusfl.algorithms.fedma import FedMA
from focusfl.algorithms.fedprox import FedProx
from focusfl.algorithms.fedsoft import FedSoft
from focusfl.algorithms.fesem import FeSEM
from focusfl.algorithms.focus.focus import Focus
from focusfl.algorithms.hardcluster import HardCluster
from focusfl.algorithms.ifca import IFCA
from focusfl.algorithms.local import Local
from focusfl.algorithms.pfnm import PFNM
from focusfl.algorithms.qffl import QFFL
from focusfl.core import Algorithm

_METHODS: list[type[Algorithm]] = [
    *(Focus, FedAvg, QFFL, AFL, Ditto, CGSV, FedProx, FedMA, PFNM, HardCluster),  # the FOCUS paper's tables
    *(IFCA, FedEM, FeSEM, CFL, FedSoft),  # clustered methods it cites
    Local,
]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.__name__.lower(): kind for kind in _METHODS}
PRESETS: dict[str, Callable[..., Algorithm]] = {"focus-algorithm1": Focus.algorithm1}  # methods with preset options


def title(method: str) -> str:
    """Return the name of a method as its paper writes it, followed by its options; an unknown one stays as it is.

    Args:
        method: A method as the user writes it, for example "qffl:q=0.1".

    Example:
        >>> title("qffl:q=0.1"), title("focus-algorithm1")
        ('q-FFL q=0.1', 'FOCUS (Algorithm 1)')
    """
    name, *options = method.split(":")
    known = ALGORITHMS.get(name)
    base = "FOCUS (Algorithm 1)" if name == "focus-algorithm1" else known.name if known else name
    return " ".join([base, *options])


__all__ = [
    "AFL",
    "ALGORITHMS",
    "CFL",
    "CGSV",
    "IFCA",
    "PFNM",
    "PRESETS",
    "QFFL",
    "Ditto",
    "FeSEM",
    "FedAvg",
    "FedEM",
    "FedMA",
    "FedProx",
    "FedSoft",
    "Focus",
    "HardCluster",
    "Local",
    "title",
]
