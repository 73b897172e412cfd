"""server_app: the server of a deployment as a Flower ServerApp."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from focusfl.flower.deployment import Deployment, serve


def server_app(deployment: Deployment | Callable[[Context], Deployment]) -> ServerApp:
    """Return the ServerApp that trains, evaluates and writes the results.

    Args:
        deployment: What to run, or a function that makes it from Flower's context.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, deployment(context) if callable(deployment) else deployment)

    return app
