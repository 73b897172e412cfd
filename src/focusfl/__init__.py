"""focusfl: fair federated learning on heterogeneous data.

Names are loaded when first used, so that `import focusfl` and `focusfl --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from focusfl import data, metrics, models
    from focusfl.algorithms import FedAvg, Focus, Local
    from focusfl.data import Federation
    from focusfl.errors import InputError
    from focusfl.fitting import fit
    from focusfl.result import Result
    from focusfl.train import Train

__version__ = "0.1.0"

__all__ = [
    "FedAvg",
    "Federation",
    "Focus",
    "InputError",
    "Local",
    "Result",
    "Train",
    "data",
    "fit",
    "metrics",
    "models",
]

_HOME = {
    "FedAvg": "focusfl.algorithms",
    "Federation": "focusfl.data",
    "Focus": "focusfl.algorithms",
    "InputError": "focusfl.errors",
    "Local": "focusfl.algorithms",
    "Result": "focusfl.result",
    "Train": "focusfl.train",
    "fit": "focusfl.fitting",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "metrics", "models"):
        return importlib.import_module(f"focusfl.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'focusfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
