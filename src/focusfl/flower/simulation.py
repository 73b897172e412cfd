"""Flower's simulation as an engine: one virtual node per agent, in worker processes of Ray.

The simulation stays open during a run: a thread runs it, and the engine uses its grid. Each agent's data is in a
separate file, which its node reads. If RAY_ADDRESS is set, Ray's cluster is used instead of this machine; TMPDIR
must then be a folder that all its machines share.
"""

from __future__ import annotations

import logging
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from safetensors.torch import load_file, save_file

from focusfl.core import Algorithm, Data, State
from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.engines.base import Engine, Replies, Scores
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.exchange import Exchange
from focusfl.flower.protocol.node import Job, client, number
from focusfl.flower.protocol.roster import Roster
from focusfl.models.task import Task
from focusfl.run import identity
from focusfl.run.settings import Settings

START_TIMEOUT = 180.0  # seconds for Ray to start


class Flower(Engine):
    """Runs every agent as a virtual node."""

    name: ClassVar[str] = "flower"

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        super().__init__(task, fed, train, rounds, seed)
        self._simulation: Simulation | None = None
        self._exchange: Exchange | None = None
        self._folder: Path | None = None  # the agents' data

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        return self._open(algorithm, server, states).round(server, t, cohort, states)

    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        scores, _ = self._open(algorithm, server, states).evaluate(server, self.rounds)
        for e, why in scores.dropped.items():
            raise RuntimeError(f"agent {e} could not be evaluated: {why}")
        return scores

    def agents_joined(self, agents: Ints) -> None:
        if self._exchange is not None:
            self._exchange.restore[0].update(agents.tolist())  # their states are sent with the next message

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._simulation = self._exchange = self._folder = None

    def _open(self, algorithm: Algorithm, server: State, states: State) -> Exchange:
        """Return the exchange; the first call starts the simulation and gives the nodes the agents' states."""
        if self._exchange is None:
            fed, settings = self.fed, Settings(rounds=self.rounds, train=self.train, seed=self.seed)
            self._folder = Path(tempfile.mkdtemp(prefix="focusfl-"))
            _write(fed, self._folder)
            app = client(_job_maker(self._folder, algorithm, self.task, settings))
            self._simulation = Simulation(app, fed.E)
            key = identity.text_digest(f"{algorithm!r}{self.train!r}{self.seed}")[:32]
            roster = Roster(self._simulation.grid, algorithm, settings, fed.classes, fed.E, key)
            roster.gather(0, algorithm.enroll(server), begin=True)
            if len(roster.nodes) < fed.E:
                why = next(iter(roster.refused.values()), "they did not reply")
                raise RuntimeError(f"{len(roster.nodes)} of {fed.E} simulated nodes started: {why}")
            restore = set(range(fed.E)), states
            self._exchange = Exchange(roster, self.task, simulated=True, restore=restore)
        return self._exchange


class Simulation:
    """Flower's simulation, open until `close`.

    A process can have only one at a time: two would wait for each other's workers.
    """

    _open: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, app: ClientApp, nodes: int) -> None:
        if not self._open.acquire(blocking=False):
            raise RuntimeError("another simulation is open in this process; run one simulation at a time")
        for name in ("flwr", "ray"):  # hide their progress messages
            logging.getLogger(name).setLevel(logging.ERROR)
        server, self._grids = ServerApp(), queue.Queue[Grid | BaseException]()
        self._finished = threading.Event()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._finished.wait()

        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

        def run() -> None:
            try:
                run_simulation(server, app, nodes, backend_config=resources)  # type: ignore[arg-type]
            except BaseException as error:
                self._grids.put(error)

        self._thread = threading.Thread(target=run, name="flower-simulation", daemon=True)
        self._thread.start()
        try:
            grid = self._grids.get(timeout=START_TIMEOUT)
        except queue.Empty:
            grid = RuntimeError(f"Flower's simulation did not start within {START_TIMEOUT:g} s")
        if isinstance(grid, BaseException):
            self.close()
            raise RuntimeError(f"Flower's simulation did not start: {grid}") from grid
        self.grid = grid

    def close(self) -> None:
        self._finished.set()
        self._thread.join(timeout=60)
        self._open.release()


def _write(fed: Federation, folder: Path) -> None:
    for e in range(fed.E):
        training, testing = fed.train(e), fed.test(e)
        tensors = {"x": training.x, "y": training.y, "test_x": testing.x, "test_y": testing.y}
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{e}.safetensors")


def _job_maker(folder: Path, algorithm: Algorithm, task: Task, settings: Settings) -> Callable[[Context], Job]:
    """Return the function that makes a node's job. It is sent to Ray's workers, so it holds no data."""
    network, classes = task.network, task.classes

    def make_job(context: Context) -> Job:
        d = load_file(folder / f"{number(context)}.safetensors")
        training, testing = Data(d["x"], d["y"]), Data(d["test_x"], d["test_y"])
        return Job(algorithm, network, settings, training, testing, classes, simulated=True)

    return make_job
