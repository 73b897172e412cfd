"""Flower's simulation as an engine: one virtual node per agent, in worker processes of Ray.

The simulation stays open during a run: a thread runs it, and the engine uses its grid. Each agent's data is in a
separate file, which its node reads; `running` deletes it if the run is killed. If RAY_ADDRESS is set, Ray's cluster
is used instead of this machine; TMPDIR must then be a folder that all its machines share.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
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
from focusfl.engines.base import Engine, Part, Replies, Scores
from focusfl.engines.plan import Ints
from focusfl.flower import local_ray
from focusfl.flower.protocol.course import LATEST, Course
from focusfl.flower.protocol.exchange import Exchange
from focusfl.flower.protocol.node import Job, client, number
from focusfl.flower.protocol.roster import Roster
from focusfl.flower.running import Workspace
from focusfl.models.task import Task
from focusfl.run import identity
from focusfl.run.settings import Settings
from focusfl.util.errors import SimulationFailed

START_TIMEOUT = 300.0  # seconds for all nodes to start; on a machine that is not busy, they take a few


class Flower(Engine):
    """Runs every agent as a virtual node."""

    name: ClassVar[str] = "flower"

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        super().__init__(task, fed, train, rounds, seed)
        self._simulation: Simulation | None = None
        self._exchange: Exchange | None = None
        self._workspace: Workspace | None = None

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        exchange = self._open(algorithm, server, states)
        exchange.roster.course = Course(rate=self.rate)
        return exchange.round(server, t, cohort, states)

    def evaluate(self, algorithm: Algorithm, server: State, states: State, part: Part = "test") -> Scores:
        agents = self.examples(part).sizes.nonzero().flatten().numpy()
        scores, _ = self._open(algorithm, server, states).evaluate(server, LATEST, part, agents)
        for e, why in scores.dropped.items():
            raise SimulationFailed(f"agent {e} could not be evaluated: {why}")
        return scores

    def agents_joined(self, agents: Ints) -> None:
        if self._exchange is not None:
            self._exchange.restore[0].update(agents.tolist())  # their states are sent with the next message

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()
        if self._workspace is not None:
            self._workspace.remove()
        self._simulation = self._exchange = self._workspace = None

    def _open(self, algorithm: Algorithm, server: State, states: State) -> Exchange:
        """Return the exchange; the first call starts the simulation and gives the nodes the agents' states."""
        if self._exchange is None:
            fed, loss = self.fed, self.task.loss.option
            settings = Settings(
                rounds=self.rounds, train=self.train, seed=self.seed, loss=loss, metrics=self.metrics
            )
            self._workspace = Workspace()
            _write(fed, self._workspace.data)
            app = client(_job_maker(self._workspace.data, algorithm, self.task, settings))
            self._simulation = Simulation(app, fed.E, self._workspace)
            key = identity.text_digest(f"{algorithm!r}{self.train!r}{self.seed}")[:32]
            roster = Roster(self._simulation.grid, algorithm, settings, fed.classes, fed.E, key)
            deadline = time.monotonic() + START_TIMEOUT
            while len(roster.nodes) < fed.E and not roster.refused and time.monotonic() < deadline:
                roster.gather(0, algorithm.enroll(server), begin=True, wait=1)
            if len(roster.nodes) < fed.E:
                busy = "the machine may be too busy: stop other programs (focusfl flower list shows simulations)"
                silent = f"no reply within {START_TIMEOUT:g} s; {busy}, or use --engine serial"
                why = next(iter(roster.refused.values()), silent)
                raise SimulationFailed(f"{len(roster.nodes)} of {fed.E} simulated nodes started: {why}")
            restore = set(range(fed.E)), states
            self._exchange = Exchange(roster, self.task, simulated=True, restore=restore)
        return self._exchange


class Simulation:
    """Flower's simulation, open until `close`.

    A process can have only one at a time: two would wait for each other's workers.
    """

    _open: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, app: ClientApp, nodes: int, workspace: Workspace | None = None) -> None:
        if not self._open.acquire(blocking=False):
            raise RuntimeError("another simulation is open in this process; run one simulation at a time")
        self._thread: threading.Thread | None = None
        self._finished = threading.Event()
        self._workspace = workspace
        try:
            self._workspace = workspace or Workspace()
            local_ray.start(self._workspace.ray)
            self.grid = self._start(app, nodes)
        except BaseException:
            self.close()
            raise

    def _start(self, app: ClientApp, nodes: int) -> Grid:
        """Run Flower's simulation in a thread and return its grid."""
        for name in ("flwr", "ray"):  # hide their progress messages
            logging.getLogger(name).setLevel(logging.ERROR)
        server, grids = ServerApp(), queue.Queue[Grid | BaseException]()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._finished.wait()

        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

        def run() -> None:
            try:
                run_simulation(server, app, nodes, backend_config=resources)  # type: ignore[arg-type]
            except BaseException as error:
                grids.put(error)

        self._thread = threading.Thread(target=run, name="flower-simulation", daemon=True)
        self._thread.start()
        try:
            grid = grids.get(timeout=START_TIMEOUT)
        except queue.Empty:
            raise SimulationFailed(f"Flower's simulation did not start within {START_TIMEOUT:g} s") from None
        if isinstance(grid, BaseException):
            raise SimulationFailed(f"Flower's simulation did not start: {grid}") from grid
        return grid

    def close(self) -> None:
        self._finished.set()
        if self._thread is not None:
            self._thread.join(timeout=60)
        local_ray.stop()
        if self._workspace is not None:
            self._workspace.remove()
        self._open.release()


def _write(fed: Federation, folder: Path) -> None:
    for e in range(fed.E):
        training, testing = fed.training.of(e), fed.testing.of(e)
        tensors = {"x": training.x, "y": training.y, "test_x": testing.x, "test_y": testing.y}
        if fed.validation is not None:
            tensors["validation_x"], tensors["validation_y"] = fed.validation.of(e)
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{e}.safetensors")


def _job_maker(folder: Path, algorithm: Algorithm, task: Task, settings: Settings) -> Callable[[Context], Job]:
    """Return the function that makes a node's job. It is sent to Ray's workers, so it holds no data."""
    network, classes, target = task.network, task.classes, task.target

    def make_job(context: Context) -> Job:
        d = load_file(folder / f"{number(context)}.safetensors")
        training, testing = Data(d["x"], d["y"]), Data(d["test_x"], d["test_y"])
        validation = Data(d["validation_x"], d["validation_y"]) if "validation_x" in d else None
        own = training, testing, classes
        return Job(algorithm, network, settings, *own, simulated=True, validation=validation, target=target)

    return make_job
