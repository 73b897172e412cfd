"""What `flwr run` loads: the app that focusfl ships."""

from focusfl.flower.app import app as client
from focusfl.flower.app import server

__all__ = ["client", "server"]
