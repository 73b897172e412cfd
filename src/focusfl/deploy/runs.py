"""Start a run as the operator, show its log, and tell whether it finished."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from focusfl.deploy import operator
from focusfl.deploy.registry import control_client
from focusfl.util.errors import InputError

START_TIMEOUT = 60.0  # seconds in which the SuperLink's executor starts a run; it takes a second or two
END_TIMEOUT = 10.0  # seconds from the end of the log to the end of the run
POLL = 0.5  # seconds between two looks


class RunFailed(Exception):
    """The run did not finish; the message says why in one line, and what to do."""


@dataclass(frozen=True)
class Status:
    """The status of a run: "pending", "starting", "running" or "finished", how it ended, and why."""

    status: str
    outcome: str = ""
    details: str = ""


def submit(folder: Path, app: Path) -> int:
    """Submit a run and return its id, once the SuperLink has begun to start it.

    Args:
        folder: The operator's folder, or the deployment's folder.
        app: The folder of the Flower app.

    Raises:
        InputError: The server refused it; what Flower says is shown.
        RunFailed: The SuperLink does not start it.
    """
    command = operator.flwr_command(folder, "run", str(app), operator.CONNECTION)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    started = re.search(r"started run (\d+)", done.stdout)
    if done.returncode or started is None:
        raise InputError("the server did not accept the run; see above")
    run = int(started[1])
    if wait_while(folder, run, {"pending"}, START_TIMEOUT).status == "pending":
        waited = f"run {run} is still pending after {START_TIMEOUT:g} s"
        raise RunFailed(
            f"{waited}: the SuperLink's executor, which starts runs, is gone; restart start-superlink.sh"
        )
    return run


def follow(folder: Path, run: int) -> None:
    """Show the log of a run until it ends.

    Args:
        folder: The operator's folder, or the deployment's folder.
        run: The run's id.

    Raises:
        RunFailed: The run did not finish, or the log ended before it.
    """
    log = ["log", str(run), operator.CONNECTION, "--stream"]
    sys.stdout.flush()
    subprocess.run(operator.flwr_command(folder, *log))
    end = wait_while(folder, run, {"pending", "starting", "running"}, END_TIMEOUT)
    resume = "run the command again with --set resume=true"
    if end.status != "finished":
        again = f"focusfl deploy flwr {folder} log {run} --stream"
        raise RunFailed(f"run {run} is {end.status}, but its log ended; see the SuperLink's log, or: {again}")
    if end.outcome != "completed":
        why = " ".join(end.details.split()) or "see the log above"
        raise RunFailed(f"run {run} {end.outcome or 'failed'} ({why}); earlier rounds are saved: {resume}")


def wait_while(folder: Path, run: int, statuses: set[str], seconds: float) -> Status:
    """Return the run's status as soon as it is none of these, or after so many seconds."""
    deadline = time.monotonic() + seconds
    with control_client(operator.operator_folder(folder)) as client:
        while (found := status(client, run)).status in statuses and time.monotonic() < deadline:
            time.sleep(POLL)
    return found


def status(client: object, run: int) -> Status:
    """Return the status of a run."""
    from flwr.proto.control_pb2 import ListRunsRequest

    listed = client.ListRuns(ListRunsRequest(run_id=run)).run_dict  # type: ignore[attr-defined]
    found = listed[run].status
    return Status(found.status, found.sub_status, found.details)
