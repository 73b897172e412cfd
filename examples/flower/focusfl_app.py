"""What `flwr run` loads: the app that focusfl ships."""

from focusfl.flower.apps.configured import app as client
from focusfl.flower.apps.configured import server

__all__ = ["client", "server"]
