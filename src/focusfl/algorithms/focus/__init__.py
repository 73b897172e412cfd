"""FOCUS: `focus.py` is the paper's Algorithm 1; what this project adds stands beside it."""

from focusfl.algorithms.focus.focus import Focus

__all__ = ["Focus"]
