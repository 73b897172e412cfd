"""focusfl: fair federated learning on heterogeneous data.

Names are loaded when first used, so that `import focusfl` and `focusfl --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from focusfl import data, intervals, metrics, models
    from focusfl.algorithms import (
        AFL,
        CFL,
        CGSV,
        IFCA,
        PFNM,
        QFFL,
        Ditto,
        FedAvg,
        FedEM,
        FedMA,
        FedProx,
        FedSoft,
        FeSEM,
        Focus,
        HardCluster,
        Local,
    )
    from focusfl.data import Federation
    from focusfl.errors import InputError
    from focusfl.fitting import fit
    from focusfl.result import Result
    from focusfl.train import Train

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022
    "AFL",
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
    "Federation",
    "InputError",
    "Result",
    "Train",
    "data",
    "fit",
    "intervals",
    "metrics",
    "models",
]

_HOME = {  # the rest are algorithms
    "Federation": "focusfl.data",
    "InputError": "focusfl.errors",
    "Result": "focusfl.result",
    "Train": "focusfl.train",
    "fit": "focusfl.fitting",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "intervals", "metrics", "models"):
        return importlib.import_module(f"focusfl.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_HOME.get(name, "focusfl.algorithms")), name)
    raise AttributeError(f"module 'focusfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
