"""Networks, as functions that make one."""

from focusfl.models.mlp import linear, mlp

__all__ = ["linear", "mlp"]
