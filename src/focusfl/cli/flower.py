"""focusfl flower: list and stop the simulations that this user has started."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

app = typer.Typer(help="Simulations with --engine flower.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """List your simulations that are running, with their process ids."""
    from focusfl.flower import running

    for process in running.simulations():
        print(f"{process.pid}  {shlex.join(process.command)}")


@app.command()
def stop(
    pids: Annotated[list[int], typer.Argument(metavar="[PID]...", help="Which ones; default: all of yours")] = [],  # noqa: B006
    wait: Annotated[float, typer.Option(help="Seconds for a run to finish its round; then it is killed")] = 60.0,
) -> None:
    """Stop your simulations, and delete the temporary files of those that were killed."""
    from focusfl.flower import running

    for process in running.stop(pids, wait):
        print(f"stopped {process.pid}  {shlex.join(process.command)}")
    for folder in running.clean_up():
        print(f"deleted {folder}")
