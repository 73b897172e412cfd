"""The simulations of this user: a record of each, so that it can be stopped by its id and leaves nothing behind.

STATE/simulations/PID.json    the process, and its temporary folders (the agents' data, Ray's files)

STATE is focusfl in the user's state folder (XDG_STATE_HOME, else ~/.local/state). A record whose process has ended
shows that it was killed: the next simulation, or `focusfl flower stop`, deletes its folders.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from focusfl.util import files, processes
from focusfl.util.errors import InputError
from focusfl.util.processes import Process

LOGGER = logging.getLogger("focusfl")
PREFIX = "focusfl-sim-"  # of the names of temporary folders
SOCKET_NAME = "/session_2000-01-01_00-00-00_000000_0000000/sockets/plasma_store"  # of Ray, in its folder
MAX_SOCKET_PATH = 103  # characters that a system may allow


@dataclass(frozen=True)
class Record:
    """A simulation that was started: its process and its temporary folders."""

    machine: str
    pid: int
    started: str
    folders: list[str]

    @property
    def process(self) -> Process | None:
        """The process, if it still runs."""
        process = processes.find(self.pid)
        return process if process is not None and process.started == self.started else None


class Workspace:
    """The temporary folders of a simulation in this process, which other users cannot read.

    Attributes:
        data: For the agents' data.
        ray: For Ray's sockets and logs.
    """

    def __init__(self) -> None:
        clean_up()
        self.data = Path(tempfile.mkdtemp(prefix=PREFIX))
        # names of sockets must be short
        short = len(str(self.data)) + len("/ray") + len(SOCKET_NAME) <= MAX_SOCKET_PATH
        self.ray = self.data / "ray" if short else Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self._record = _folder() / f"{os.getpid()}-{self.data.name}.json"
        me = processes.find(os.getpid())
        if me is None:  # the system does not show its processes
            return
        folders = [str(self.data)] if short else [str(self.data), str(self.ray)]
        record = Record(processes.machine(), me.pid, me.started, folders)
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_json(self._record, asdict(record))
        except OSError as error:
            LOGGER.warning(f"{self._record}: {error.strerror}; focusfl flower stop will not know this simulation")

    def remove(self) -> None:
        """Delete the folders and the record."""
        for folder in (self.data, self.ray):
            shutil.rmtree(folder, ignore_errors=True)
        self._record.unlink(missing_ok=True)


def simulations() -> list[Process]:
    """Return this user's processes that run simulations, and the SuperLink of `flwr run . local`."""
    running = {record.pid: process for _, record in _records() if (process := record.process) is not None}
    running |= {process.pid: process for process in processes.every() if _is_local_superlink(process)}
    return [process for process in running.values() if process.user == os.getuid()]


def stop(pids: list[int], wait: float) -> list[Process]:
    """Stop simulations: each may finish its round and save it; what still runs after `wait` seconds is killed.

    Args:
        pids: Their ids; none: all of this user's.
        wait: How many seconds they may take.

    Returns:
        The processes that were stopped.

    Raises:
        InputError: An id is not that of a simulation of this user.
    """
    known = {process.pid: process for process in simulations()}
    for pid in pids:
        if pid not in known:
            raise InputError(f"{pid} is not a simulation of yours; focusfl flower list shows them")
    chosen = [known[pid] for pid in dict.fromkeys(pids)] if pids else list(known.values())
    deadline = time.monotonic() + wait
    for process in chosen:
        _send(process, signal.SIGTERM)
    while (left := [process for process in chosen if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        _send(process, signal.SIGKILL)
    while any(_runs(process) for process in left):
        time.sleep(0.1)
    return chosen


def clean_up() -> list[Path]:
    """Delete the temporary folders of this user's simulations that were killed, and return them."""
    deleted = []
    for path, record in _records():
        if record.process is None:
            folders = [folder for folder in map(Path, record.folders) if _is_ours(folder)]
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            if not any(folder.exists() for folder in folders):  # else it is tried again next time
                path.unlink(missing_ok=True)
            deleted += folders
    return deleted


def _is_ours(folder: Path) -> bool:
    """Whether this is a temporary folder of a simulation of this user: a wrong record must not delete others."""
    if not folder.name.startswith(PREFIX) or folder.is_symlink() or not folder.is_dir():
        return False
    return folder.stat().st_uid == os.getuid()


def _records() -> Iterator[tuple[Path, Record]]:
    """Yield this machine's records; the state folder may be shared between machines."""
    for path in sorted(_folder().glob("*.json")):
        try:
            record = Record(**files.read_json(path))
        except (InputError, TypeError, OSError):  # damaged, or deleted at this moment
            continue
        if record.machine == processes.machine():
            yield path, record


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "focusfl" / "simulations"


def _is_local_superlink(process: Process) -> bool:
    """Whether this is the SuperLink that `flwr run . local` starts: it logs into this user's Flower folder."""
    home = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser()
    return {"--simulation", str(home / "local-superlink" / "superlink.log")} <= set(process.command)


def _runs(process: Process) -> bool:
    found = processes.find(process.pid)
    return found is not None and found.started == process.started


def _send(process: Process, number: int) -> None:
    if _runs(process):
        os.kill(process.pid, number)
