"""One callback per tracking tool. The libraries are optional, and are imported when a run starts.

Nothing is sent over a network unless the user names a server: TensorBoard and W&B write files, MLflow a database
file. Their telemetry is switched off.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import secrets
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from focusfl.data.own.folder import FolderFederation
from focusfl.run import results
from focusfl.run.callbacks import Callback
from focusfl.run.tracking.values import agent_keys, final_values, parameters, round_values
from focusfl.util import files
from focusfl.util.errors import InputError, nearest, require_choice, require_integer

if TYPE_CHECKING:
    from focusfl.run.loop import Round
    from focusfl.run.result import Result
    from focusfl.run.setup import Setup

MAX_AGENTS = 100  # by default, only so many agents have values of their own
MLFLOW_BATCH = 100  # values that MLflow takes at once: 1,000 metrics, 100 parameters
FINAL = "faa"  # a value that only a finished run has
RUN_TAG = "focusfl.run"  # MLflow: the fingerprint of the run


class Tracker(Callback):
    """What all tools share: when a run is opened, and what is written of it.

    A run is opened with its first round, whose number says whether it continues an earlier one. Only rounds that
    were evaluated have values: `settings.eval_every`.

    Args:
        name: What to call the run; by default the method and the seed.
        agents: At most so many agents have values of their own; means over the agents are always of all.
    """

    tool: str  # for messages

    def __init__(self, name: str | None = None, agents: int = MAX_AGENTS) -> None:
        require_integer("agents", agents, 0)
        self.name, self.agents = name, agents

    def on_start(self, setup: Setup) -> None:
        """Check that the library is there, before any training."""
        self._opened, self._written = False, 0
        self.load()

    def on_round(self, setup: Setup, done: Round) -> None:
        """Write the values of a round that was evaluated."""
        if not self._opened:
            self._begin(setup, done.t)
        if done.scores is not None and done.t > self._written:
            values = round_values(done.scores, done.pi, setup.algorithm, self._names, done.validation)
            self._log(done.t, values | {"round_seconds": done.seconds})
            self._written = done.t

    def on_end(self, setup: Setup, result: Result) -> None:
        """Write what is known only at the end, and close the run."""
        if not self._opened:  # it was resumed when no round was left
            if self._finished(setup):
                return
            self._begin(setup, result.rounds + 1)
            self._written = result.rounds
        values = final_values(result, self._names)
        if self._written < result.rounds == result.t:  # a callback ended the run, and it was evaluated after that
            scores = result.scores, result.pi, setup.algorithm, self._names, result.validation
            values |= round_values(*scores)
        self._log(result.rounds, values)
        self._close()
        self._opened = False

    def _begin(self, setup: Setup, t: int) -> None:
        names = setup.fed.agents if isinstance(setup.fed, FolderFederation) else ()
        self._names = agent_keys(names, setup.E)[: self.agents]
        self._written = self._open(setup, t)
        self._opened = True

    def _run_name(self, setup: Setup) -> str:
        return self.name or results.run_name(type(setup.algorithm).__name__.lower(), setup.settings.seed)

    def load(self) -> None:
        """Import the library.

        Raises:
            InputError: It is not installed.
        """
        try:
            self._import()
        except ImportError as error:
            missing = f"{self.tool} is not installed ({error.name})"
            raise InputError(f'{missing}: pip install "focusfl[tracking]"') from error

    @abstractmethod
    def _import(self) -> None:
        """Import the library."""

    @abstractmethod
    def _finished(self, setup: Setup) -> bool:
        """Say whether an earlier process wrote the whole run."""

    @abstractmethod
    def _open(self, setup: Setup, t: int) -> int:
        """Open the run at round t; return the last round that was already written and must not be repeated."""

    @abstractmethod
    def _log(self, t: int, values: dict[str, float]) -> None:
        """Write the values of round t."""

    @abstractmethod
    def _close(self) -> None:
        """Finish the run."""


class TensorBoard(Tracker):
    """Writes event files for TensorBoard: ``tensorboard --logdir FOLDER``.

    A run that is resumed writes one more file. It says from which round on earlier values are void.

    Args:
        folder: The folder of all runs. Each run has a sub-folder.
        name: The sub-folder; by default method, seed and the first digits of the run's fingerprint.
        agents: At most so many agents have values of their own.

    Example:
        ``ff.fit(ff.Focus(M=2), fed, callbacks=[TensorBoard("tracking")])``
    """

    tool = "TensorBoard"

    def __init__(self, folder: str | Path, name: str | None = None, agents: int = MAX_AGENTS) -> None:
        super().__init__(name, agents)
        self.folder = Path(folder)

    def _import(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer_class: Any = SummaryWriter

    def _place(self, setup: Setup) -> Path:
        return self.folder / (self.name or f"{self._run_name(setup)}-{setup.fingerprint[:8]}")

    def _finished(self, setup: Setup) -> bool:
        if not (folder := self._place(setup)).is_dir():
            return False
        reader = "tensorboard.backend.event_processing.event_accumulator"  # it has no types
        events = importlib.import_module(reader).EventAccumulator(str(folder))
        events.Reload()
        return FINAL in events.Tags()["scalars"]

    def _open(self, setup: Setup, t: int) -> int:
        self._writer = self._writer_class(str(files.make_folder(self._place(setup))), purge_step=t)
        rows = [f"| {k} | {_cell(str(v))} |" for k, v in parameters(setup).items()]
        self._writer.add_text("parameters", "\n".join(["| option | value |", "| --- | --- |", *rows]), t)
        return 0

    def _log(self, t: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, t)
        self._writer.flush()

    def _close(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """Writes to a database file of MLflow, or to the MLflow server that you name.

    A run that is resumed continues its unfinished run in MLflow; rounds that are already there are not repeated.

    Args:
        store: A folder, which gets a database ``mlflow.db``; or a URI such as ``http://localhost:5000``.
        experiment: The name of the experiment in MLflow.
        name: The name of the run; by default the method and the seed.
        agents: At most so many agents have values of their own.

    Example:
        ``ff.fit(ff.Focus(M=2), fed, callbacks=[MLflow("tracking")])``, then
        ``mlflow ui --backend-store-uri sqlite:///tracking/mlflow.db``
    """

    tool = "MLflow"

    def __init__(
        self,
        store: str | Path = "mlflow",
        experiment: str = "focusfl",
        name: str | None = None,
        agents: int = MAX_AGENTS,
    ) -> None:
        super().__init__(name, agents)
        self.store, self.experiment = str(store), experiment

    def _import(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported
        with _quiet():
            import alembic  # noqa: F401  # both for the database
            import mlflow.entities
            import mlflow.tracking
            import sqlalchemy  # noqa: F401
        self._mlflow: Any = mlflow

    def _open(self, setup: Setup, t: int) -> int:
        with self._reachable():
            return self._continue_or_create(setup)

    def _finished(self, setup: Setup) -> bool:
        with self._reachable():
            return any(run.info.status == "FINISHED" for run in self._runs(setup))

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            with _quiet():
                yield
        except self._mlflow.exceptions.MlflowException as error:
            said = _without_credentials(str(error).splitlines()[0])
            raise InputError(f"MLflow at {_without_credentials(self.store)} cannot be used: {said}") from None

    def _runs(self, setup: Setup) -> list[Any]:
        """Connect; return the runs of this name with the same settings and data, the latest first."""
        uri, artifacts = self.store, None
        if "://" not in uri:
            folder = files.make_folder(Path(uri)).resolve()
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = client = self._mlflow.tracking.MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(self.experiment)
        self._at = known.experiment_id if known else client.create_experiment(self.experiment, artifacts)
        same = f"tags.`{RUN_TAG}` = '{setup.fingerprint}'"
        runs = client.search_runs([self._at], same, order_by=["attributes.start_time DESC"])
        return [run for run in runs if run.info.run_name == self._run_name(setup)]

    def _continue_or_create(self, setup: Setup) -> int:
        for run in self._runs(setup):
            if run.info.status != "FINISHED":
                self._run = run.info.run_id
                rounds = self._client.get_metric_history(self._run, "avg_loss")
                return max((metric.step for metric in rounds), default=0)
        name, tags, client = self._run_name(setup), {RUN_TAG: setup.fingerprint}, self._client
        self._run = client.create_run(self._at, tags=tags, run_name=name).info.run_id
        every = [self._mlflow.entities.Param(k, str(v)) for k, v in parameters(setup).items()]
        for i in range(0, len(every), MLFLOW_BATCH):
            client.log_batch(self._run, params=every[i : i + MLFLOW_BATCH])
        return 0

    def _log(self, t: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        every = [self._mlflow.entities.Metric(k, v, now, t) for k, v in values.items()]
        for i in range(0, len(every), MLFLOW_BATCH):
            self._client.log_batch(self._run, metrics=every[i : i + MLFLOW_BATCH])

    def _close(self) -> None:
        self._client.set_terminated(self._run)


class WandB(Tracker):
    """Writes runs of Weights & Biases into a folder; ``wandb sync`` uploads them if you want to.

    Neither code, git, command line, console, packages nor anything about the machine is recorded. Offline, a run
    that is resumed writes one more folder with the id of the first; its rounds are those from the checkpoint on.

    Args:
        folder: Where runs are written, in a sub-folder ``wandb``.
        mode: "offline", or "online" to send every round to the server.
        project: The name of the project.
        name: The name of the run; by default the method and the seed.
        agents: At most so many agents have values of their own.

    Example:
        ``ff.fit(ff.Focus(M=2), fed, callbacks=[WandB("tracking")])``
    """

    tool = "Weights & Biases"

    def __init__(
        self,
        folder: str | Path = "wandb",
        mode: Literal["offline", "online"] = "offline",
        project: str = "focusfl",
        name: str | None = None,
        agents: int = MAX_AGENTS,
    ) -> None:
        require_choice("mode", mode, ("offline", "online"))
        super().__init__(name, agents)
        self.folder, self.mode, self.project = Path(folder), mode, project

    def _import(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        import wandb

        self._wandb: Any = wandb

    def _open(self, setup: Setup, t: int) -> int:
        folder, name = files.make_folder(self.folder), self._run_name(setup)
        online = {"resume": "allow"} if self.mode == "online" else {}
        self._run = self._wandb.init(
            project=self.project,
            name=name,
            id=self._run_id(setup, t),
            config=parameters(setup),
            settings=self._wandb.Settings(
                mode=self.mode,
                reinit="create_new",  # a run that was interrupted in this process may still be open
                root_dir=str(folder),
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
            **online,
        )
        return max(int(self._run.step) - 1, 0) if online else 0

    def _finished(self, setup: Setup) -> bool:
        return bool(self._note(setup).get("finished"))

    def _note(self, setup: Setup) -> dict[str, Any]:
        """What is noted of the last run with these settings and data: its id, and whether it finished."""
        self._note_path = self.folder / f"{setup.fingerprint[:16]}.json"
        noted = files.read_json(self._note_path) if self._note_path.exists() else {}
        return noted if isinstance(noted, dict) and re.fullmatch(r"[0-9a-f]{8}", str(noted.get("id"))) else {}

    def _run_id(self, setup: Setup, t: int) -> str:
        """The id of the run that this one continues, or a new one."""
        noted = self._note(setup)
        if t > 1 and noted and not noted.get("finished"):
            return str(noted["id"])
        new = secrets.token_hex(4)
        files.write_json(self._note_path, {"id": new})
        return new

    def _log(self, t: int, values: dict[str, float]) -> None:
        self._run.log(values, step=t)

    def _close(self) -> None:
        self._run.finish()
        files.write_json(self._note_path, {"id": self._run.id, "finished": True})


TRACKERS: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_tools(tools: Sequence[str]) -> None:
    """Check before a run that there are such tools, and that their libraries are installed.

    Raises:
        InputError: One of them cannot be used.
    """
    for tool in tools:
        if tool not in TRACKERS:
            raise InputError(f"--track {tool}: {nearest(tool, TRACKERS)}")
        TRACKERS[tool](tool).load()


def for_experiment(tools: Sequence[str], out: Path, method: str, seed: int) -> list[Callback]:
    """Return the trackers of one run of an experiment, which write into OUT/tracking/TOOL.

    Args:
        tools: Names of tools, keys of TRACKERS.
        out: The experiment's folder.
        method: The method as the user wrote it.
        seed: The seed.
    """
    name = results.run_name(method, seed)
    return [TRACKERS[tool](out / "tracking" / tool, name=name) for tool in dict.fromkeys(tools)]


def _cell(text: str) -> str:
    """A text inside a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _without_credentials(text: str) -> str:
    """Leave user names and passwords out of the URIs in a text.

    Example:
        >>> _without_credentials("https://ann:secret@host/x?token=1 failed")
        'https://host/x failed'
    """
    return re.sub(r"\?\S*", "", re.sub(r"(?<=://)[^/\s@]*@", "", text))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's remarks on creating its database, and its libraries' deprecations, from the user."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(before)
