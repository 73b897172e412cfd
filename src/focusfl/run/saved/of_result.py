"""The trained model of a finished run, and of a part of a federation: without the examples it was trained on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from focusfl.algorithms import Adapted
from focusfl.core import Algorithm, State
from focusfl.data.own.inputs import Inputs
from focusfl.models.describe import describe
from focusfl.models.task import Task
from focusfl.report.rows import Row
from focusfl.run.saved.about import OWN_LOSS, About, InputsAbout, TargetAbout
from focusfl.run.saved.trained import TrainedModel
from focusfl.run.settings import Settings
from focusfl.run.setup import Model

if TYPE_CHECKING:
    from focusfl.run.result import Result


def trained_model(result: Result) -> TrainedModel:
    """Return the model of a finished run."""
    setup, fed = result.setup, result.setup.fed
    names = getattr(fed, "agents", ()) or tuple(str(e) for e in range(fed.E))
    return assembled(
        setup.algorithm,
        setup.task,
        setup.model,
        setup.settings,
        result.server,
        result.states,
        agents=names,
        inputs=setup.inputs or Inputs.of(fed),
        labels=getattr(fed, "labels", ()),
        data=fed.name,
        fingerprint=fed.fingerprint,
        results=result.row(),
    )


def assembled(
    algorithm: Algorithm,
    task: Task,
    made_by: Model,
    settings: Settings,
    server: State,
    states: State,
    *,
    agents: tuple[str, ...],
    inputs: Inputs,
    labels: tuple[str, ...] = (),
    data: str,
    fingerprint: str = "",
    results: Row | None = None,
    received: bool = False,
) -> TrainedModel:
    """Put together what a run, a server or a node holds.

    Args:
        algorithm: The method.
        task: The network and its loss.
        made_by: What made the network.
        settings: The options of the run.
        server: The server's state; at a node, what the node received of it.
        states: The agents' states, stacked; none at a server.
        agents: The agents' names, as many as there are states.
        inputs: The form of an example.
        labels: The names of the classes.
        data: The name of the data.
        fingerprint: The sha256 of the data, where it is known.
        results: The row of results.json, where it is known.
        received: Whether this is a node.
    """
    from focusfl.run.result import name_and_options

    is_adapted = isinstance(algorithm, Adapted)
    options: dict[str, Any] = name_and_options(algorithm.inner if isinstance(algorithm, Adapted) else algorithm)
    about = About(
        method=options["algorithm"],
        title=algorithm.name,
        params=_plain(options["params"]),
        network=describe(task.network, made_by),
        classes=task.classes,
        several=task.loss.labels == "multi-label",
        loss=task.loss.name if task.loss.default or isinstance(task.loss.option, str) else OWN_LOSS,
        labels=list(labels),
        inputs=InputsAbout.of(inputs),
        agents=list(agents),
        received=received,
        train=asdict(settings.local),
        seed=settings.seed,
        rounds=settings.T,
        data=data,
        fingerprint=fingerprint,
        results=None if results is None else {k: v for k, v in results.items() if k != "seconds"},
        adapted=is_adapted,
        target=None if task.target is None else TargetAbout(**task.target._asdict()),
    )
    server = server if received else algorithm.released(server)
    parts = algorithm, task, server, states, tuple(agents), inputs, tuple(labels)
    return TrainedModel(*parts, settings.local, settings.seed, received, about)


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in params.items()}
