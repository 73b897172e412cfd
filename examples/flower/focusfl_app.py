"""The app that comes with focusfl, under the names that `flwr run` loads."""

from focusfl.flower.apps.configured import app as client
from focusfl.flower.apps.configured import server

__all__ = ["client", "server"]
