"""Networks: functions that make one."""

from focusfl.models.mlp import SkipMlp, linear, mlp
from focusfl.models.resnet import resnet18
from focusfl.models.text import text_classifier

__all__ = ["SkipMlp", "linear", "mlp", "resnet18", "text_classifier"]
