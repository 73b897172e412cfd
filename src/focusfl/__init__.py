"""Fair federated learning on heterogeneous data: FOCUS, the fairness measure FAA, and other methods.

Example:
    >>> import focusfl as ff
    >>> result = ff.fit(ff.Focus(M=2), ff.data.synthetic(), rounds=5)
    >>> result.pi.shape
    torch.Size([10, 2])

A name is imported when it is first used, so that `import focusfl` and `focusfl --help` need not wait for torch.
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
    from focusfl.run.callbacks import Callback
    from focusfl.run.compare_methods import compare
    from focusfl.run.fit import fit
    from focusfl.run.result import Result
    from focusfl.run.saved.store import load
    from focusfl.run.saved.trained import TrainedModel
    from focusfl.run.settings import Settings
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
    "Callback",
    "Federation",
    "InputError",
    "Result",
    "Settings",
    "Train",
    "TrainedModel",
    "compare",
    "data",
    "fit",
    "intervals",
    "load",
    "metrics",
    "models",
]

_MODULES = {  # every other name is an algorithm
    "Callback": "focusfl.run.callbacks",
    "Federation": "focusfl.data",
    "InputError": "focusfl.util.errors",
    "Result": "focusfl.run.result",
    "Settings": "focusfl.run.settings",
    "Train": "focusfl.core.train",
    "TrainedModel": "focusfl.run.saved.trained",
    "compare": "focusfl.run.compare_methods",
    "fit": "focusfl.run.fit",
    "load": "focusfl.run.saved.store",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "models"):
        return importlib.import_module(f"focusfl.{name}")
    if name in ("intervals", "metrics"):
        return importlib.import_module(f"focusfl.fairness.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "focusfl.algorithms")), name)
    raise AttributeError(f"module 'focusfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
