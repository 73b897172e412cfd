"""The vectorised engine: `vmap` of the same `local` over many agents at once."""

from focusfl.engines.vectorised.engine import Vectorised

__all__ = ["Vectorised"]
