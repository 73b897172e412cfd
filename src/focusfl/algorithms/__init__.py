"""The methods: one file per paper. An algorithm uses `focusfl.core` and never knows which engine runs it."""

from focusfl.algorithms.adapt import Adapted, adapted
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
from focusfl.algorithms.named import ALGORITHMS, PRESETS, find_method, method_name, split_method, title
from focusfl.algorithms.pfnm import PFNM
from focusfl.algorithms.qffl import QFFL
from focusfl.algorithms.weighting import decide_weights, with_common_weights

__all__ = [
    "AFL",
    "ALGORITHMS",
    "CFL",
    "CGSV",
    "IFCA",
    "PFNM",
    "PRESETS",
    "QFFL",
    "Adapted",
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
    "adapted",
    "decide_weights",
    "find_method",
    "method_name",
    "split_method",
    "title",
    "with_common_weights",
]
