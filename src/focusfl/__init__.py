"""focusfl: fair federated learning on heterogeneous data.

Names are loaded when first used, so that `import focusfl` and `focusfl --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from focusfl import data, models
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
    from focusfl.core.train import Train
    from focusfl.data import Federation
    from focusfl.fairness import intervals, metrics
    from focusfl.run.fit import fit
    from focusfl.run.result import Result
    from focusfl.util.errors import InputError

__version__ = "0.2.0"

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
    "InputError": "focusfl.util.errors",
    "Result": "focusfl.run.result",
    "Train": "focusfl.core.train",
    "fit": "focusfl.run.fit",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "models"):
        return importlib.import_module(f"focusfl.{name}")
    if name in ("intervals", "metrics"):
        return importlib.import_module(f"focusfl.fairness.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_HOME.get(name, "focusfl.algorithms")), name)
    raise AttributeError(f"module 'focusfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
