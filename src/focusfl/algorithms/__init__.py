"""One paper, one file. An algorithm knows `focusfl.core` and never which engine runs it."""

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

_ORDER: list[type[Algorithm]] = [
    *(Focus, FedAvg, QFFL, AFL, Ditto, CGSV, FedProx, FedMA, PFNM, HardCluster),  # the FOCUS paper's tables
    *(IFCA, FedEM, FeSEM, CFL, FedSoft),  # clustered methods it cites
    Local,
]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.__name__.lower(): kind for kind in _ORDER}

__all__ = [
    "AFL",
    "ALGORITHMS",
    "CFL",
    "CGSV",
    "IFCA",
    "PFNM",
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
]
