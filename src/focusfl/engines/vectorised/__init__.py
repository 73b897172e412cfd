"""Many agents at once, by `vmap` of the same `local`."""

from focusfl.engines.vectorised.engine import Vectorised

__all__ = ["Vectorised"]
