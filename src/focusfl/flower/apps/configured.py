"""The app for `flwr run`: the run configuration sets everything, and no code is needed.

Nodes with `data` in their node configuration read that folder; the others are the agents of the data set that the
run names, as in a simulation. docs/flower.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from torch import nn

from focusfl import models
from focusfl.algorithms import ALGORITHMS, PRESETS, adapted, decide_weights, split_method
from focusfl.core import Algorithm
from focusfl.data import DATA
from focusfl.data.federation import Federation, Recipe, own_recipe
from focusfl.data.own.contents import MAX_MB
from focusfl.data.own.description import Description, Reading
from focusfl.data.own.inputs import Inputs, columns_digest
from focusfl.data.own.node import OwnData, read_own_data
from focusfl.fairness.scores import BUILT_IN
from focusfl.flower.apps.client import checked_pair
from focusfl.flower.apps.server import server_app
from focusfl.flower.deployment import Deployment
from focusfl.flower.described import network, target_scale
from focusfl.flower.protocol.node import Job, client, number
from focusfl.flower.protocol.own_node import OwnJob
from focusfl.flower.protocol.wire import Refused
from focusfl.run.experiment import Experiment
from focusfl.run.settings import Settings
from focusfl.util.errors import InputError, nearest, require, require_choice

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": models.mlp,
    "linear": models.linear,
    "resnet18": models.resnet18,
}
SETTINGS = ("seed", "fraction", "minimum", "timeout", "wait", "eval-every", "secure")  # as Settings defines them
KEYS: dict[str, Any] = {
    "algorithm": "focus",
    "agents": 0,
    "rounds": 0,
    "model": "",
    "classes": 0,
    "labels": "",
    "label": "label",
    "text": "text",
    "scale": "auto",
    "drop": "",
    "categorical": "",
    "missing": "impute",
    "target": "auto",
    "hidden": 32,
    "loss": "",
    "metrics": "",
    "test": 0.2,
    "best": "agent",
    "out": "",
    "resume": False,
    "validation": -1.0,
    "patience": -1,
} | {key: getattr(Settings(), key.replace("-", "_")) for key in SETTINGS}
"""Keys of the run configuration and their defaults; 0, -1 and "" stand for the data set's default."""


READING = ("label", "text", "test", "scale", "drop", "categorical", "missing", "target", "hidden")


class RunConfig:
    """A checked run configuration. Options of data, training and methods: `data.name`, `train.lr`, `focus.M`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        for key in {k.partition(".")[0] for k in config} & {"joins", "leaves"}:
            raise InputError(f"{key}: the connected nodes take part in this run; start and stop nodes instead")
        if not config.get("data.name"):  # options of the nodes' files are called the same as on one machine
            own = {key: config[f"data.{key}"] for key in READING if f"data.{key}" in config}
            config = {k: v for k, v in config.items() if k.removeprefix("data.") not in own} | own
        self.flat = {k: v for k, v in config.items() if "." not in k}
        for key in self.flat.keys() - KEYS.keys():
            raise InputError(f"{key}: {nearest(key, KEYS)}")
        tables: dict[str, dict[str, Any]] = {"data": {}}
        for key, value in config.items():
            if "." in key:
                table, _, option = key.partition(".")
                tables.setdefault(table, {})[option] = value
        self.named = bool(tables["data"].get("name"))
        if not self.named and any(k != "name" for k in tables["data"]):
            raise InputError("data.name: options of the data are set, but not the name of the data set")
        if not self.named:  # every node has its own data
            tables["data"] = {"name": "folder", "path": "."}
        self._refuse_own_code(str(tables["data"]["name"]))
        raw = {**tables, "algorithms": [str(self["algorithm"])], "seeds": [int(self["seed"])]}
        self.experiment = Experiment.parse(raw, "run configuration")

    def _refuse_own_code(self, data: str) -> None:
        """Only what is built in may be named: a node must not import what a server, or who starts a run, names."""
        method, methods = split_method(self["algorithm"])[0], (*ALGORITHMS, *PRESETS)
        named = [("algorithm", method, methods), ("data.name", data, tuple(DATA))]
        named += [("metrics", name, tuple(BUILT_IN)) for name in self.words("metrics")]
        for key, name, known in named:
            if name not in known:
                hint = "code of your own belongs into an app of your own" if ":" in name else nearest(name, known)
                raise InputError(f"run configuration: {key} = {name!r}: {hint}")

    def __getitem__(self, key: str) -> Any:
        default, value = KEYS[key], self.flat.get(key, KEYS[key])
        if isinstance(default, bool) != isinstance(value, bool):
            raise InputError(f"{key} = {value!r}: expected {'true or false' if default is False else 'a value'}")
        try:
            typed = type(default)(value)
        except ValueError as error:
            raise InputError(f"{key} = {value!r}: expected a number") from error
        if isinstance(default, int) and typed != value:
            raise InputError(f"{key} = {value!r}: expected a whole number")
        return typed

    @cached_property
    def fed(self) -> Federation | None:
        """The data set that the run names; None if every node has its own data."""
        return _federation(self.experiment.model_dump_json(), self["seed"]) if self.named else None

    @property
    def recipe(self) -> Recipe:
        """The defaults: those of the data set, or of a user's own data, whose network has to be named."""
        return replace(own_recipe(1, self.classes), model=None) if self.fed is None else self.fed.recipe

    @cached_property
    def settings(self) -> Settings:
        """All options of the run."""
        options = {key.replace("-", "_"): self[key] for key in SETTINGS}
        require_choice("best", self["best"], ("agent", "none"))
        options |= {key: None if self[key] == -1 else self[key] for key in ("validation", "patience")}
        train, rounds = self.experiment.train_options(self.recipe.train), self["rounds"] or self.recipe.rounds
        options |= {"loss": self["loss"] or None, "metrics": self.words("metrics") or None}
        return Settings(rounds=rounds, train=train, bayes=self["best"], **options).updated(self.recipe)

    @property
    def model(self) -> Callable[[], nn.Module] | None:
        """What makes the network; None: the default for the nodes' own files."""
        return parse_model(self["model"]) if self["model"] else self.recipe.model

    @property
    def hidden(self) -> int:
        require("hidden", self["hidden"], self["hidden"] >= 0, "0 or more")
        return int(self["hidden"])

    @property
    def reading(self) -> Reading | None:
        """How nodes read files of their own; None if the run names a data set."""
        if self.named:
            return None
        scale = {"auto": None, "true": True, "false": False}
        chosen = str(self.flat.get("scale", "auto")).lower()
        require_choice("scale", chosen, scale)
        options: dict[str, Any] = {key: tuple(self.words(key)) for key in ("drop", "categorical", "labels")}
        options |= {key: self[key] for key in ("label", "text", "seed", "test", "missing", "target")}
        return Reading(**options, scale=scale[chosen], classes=self.classes)

    @property
    def classes(self) -> int | None:
        if self.fed is not None:
            return self.fed.classes
        classes = self["classes"] or len(self.labels) or None
        if self.labels and classes != len(self.labels):
            raise InputError(f"classes = {classes}, but labels has {len(self.labels)} names: set only one of them")
        return classes

    @property
    def labels(self) -> list[str]:
        return self.words("labels")

    def words(self, key: str) -> list[str]:
        """Return the words of a key that are separated by commas."""
        return [word.strip() for word in self[key].split(",") if word.strip()]

    @property
    def algorithm(self) -> Algorithm:
        true = None if self.fed is None else self.fed.clusters
        algorithm = self.experiment.algorithm(self["algorithm"], None if true is None else int(true.max()) + 1)
        if algorithm.prerequisite() is not None:
            raise InputError(f"{algorithm.name} needs the clusters of another run: it cannot be deployed")
        algorithm = decide_weights(algorithm, by_n=self.named and not self.recipe.own)  # as on one machine
        return adapted(algorithm, by_default=self.recipe.adapt and bool(self.settings.validation))

    def job(self, context: Context) -> Job | OwnJob:
        """Return the job of the node with this context."""
        e, reading = number(context), self.reading
        if "data" in context.node_config and reading is not None:
            max_mb = int(context.node_config.get("max-mb", MAX_MB))  # the node's own limit, not the server's
            own = read_own_data(str(context.node_config["data"]), str(e), reading, max_mb)
            return OwnJob(own, self.algorithm, self.settings, partial(self._own_job, own))
        if self.fed is None or e >= self.fed.E:
            raise Refused(f"agent {e} has no data: name its folder with --node-config 'data=\"...\"'")
        pair = checked_pair((self.fed.training.of(e), self.fed.testing.of(e)), self.classes)
        model = network(self.model, Description(Inputs.of(self.fed), self.classes), self.hidden)
        return Job(self.algorithm, model, self.settings, *pair, self.classes, labels=tuple(self.labels))

    def _own_job(self, own: OwnData, description: Description) -> Job:
        """Return the job of a node with files of its own, once it is known how they are encoded."""
        inputs, classes = description.inputs, description.classes
        training, testing = checked_pair(own.data(description), classes)
        model = network(self.model, description, self.hidden)
        return Job(
            self.algorithm,
            model,
            self.settings,
            training,
            testing,
            classes,
            columns=columns_digest(sorted(own.form.columns)) if own.form.columns else "",
            inputs=replace(inputs, shape=tuple(training.x.shape[1:])),
            labels=description.labels,
            target=target_scale(description, self.settings.loss),
        )

    def deployment(self) -> Deployment:
        """Return what the server runs."""
        require("test", self["test"], 0 < self["test"] < 1, "a share between 0 and 1")
        agents = self["agents"] or (self.fed.E if self.fed is not None else 0)
        return Deployment.of(
            self.algorithm,
            self.model,
            agents,
            self.classes,
            settings=self.settings,
            out=Path(self["out"]).expanduser() if self["out"] else None,
            resume=self["resume"],
            name=self.fed.name if self.fed is not None else "federation",
            labels=tuple(self.labels),
            label=self["label"],
            reading=self.reading,
            hidden=self.hidden,
        )


def parse_model(text: str) -> Callable[[], nn.Module]:
    """Return a function that makes the network of a text such as "mlp:64,32,10"."""
    name, _, sizes = text.partition(":")
    if name not in MODELS:
        raise InputError(f"model = {text!r}: {nearest(name, MODELS)}; sizes follow a colon, as in mlp:64,32,10")
    try:
        make = partial(MODELS[name], *(int(size) for size in sizes.split(",") if size.strip()))
        if not list(make().parameters()):
            raise ValueError
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"model = {text!r}: expected its sizes as whole numbers, as in mlp:64,32,10") from error
    return make


@cache
def _federation(experiment: str, seed: int) -> Federation:
    """Make the data once per process: a worker of a simulation answers many messages."""
    return Experiment.model_validate_json(experiment).federation(seed)


app = client(lambda context: RunConfig(context.run_config).job(context))
server = server_app(lambda context: RunConfig(context.run_config).deployment())
