"""FOCUS: `focus.py` is the paper's Algorithm 1. The files beside it hold what this project adds."""

from focusfl.algorithms.focus.focus import Focus

__all__ = ["Focus"]
