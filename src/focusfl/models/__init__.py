"""Networks, as functions that make one."""

from focusfl.models.mlp import linear, mlp
from focusfl.models.resnet import resnet18

__all__ = ["linear", "mlp", "resnet18"]
