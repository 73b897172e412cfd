"""The app that `flwr run` takes: everything by its run configuration, nothing to program.

Nodes with `data` in their node configuration read that folder; the others are the agents of the data set that the
run names, as in a simulation. docs/flower.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from torch import nn

from focusfl import models
from focusfl.core import Algorithm
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe
from focusfl.data.own.node import read_node_data
from focusfl.flower.apps.client import checked_pair
from focusfl.flower.apps.run import Run
from focusfl.flower.apps.server import server_app
from focusfl.flower.protocol.node import Job, client, number
from focusfl.flower.protocol.wire import Refused
from focusfl.run.experiment import Experiment
from focusfl.util.errors import InputError, nearest, require

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": models.mlp,
    "linear": models.linear,
    "resnet18": models.resnet18,
}
OURS: dict[str, Any] = {
    "algorithm": "focus",
    "agents": 0,
    "rounds": 0,
    "seed": 0,
    "fraction": 1.0,
    "model": "",
    "classes": 0,
    "labels": "",
    "label": "label",
    "text": "text",
    "test": 0.2,
    "minimum": 1,
    "timeout": 3600.0,
    "wait": 300.0,
    "eval-every": 1,
    "best": "agent",
    "out": "",
    "resume": False,
    "secure": False,
}
"""Keys of the run configuration and what they are by default; 0 and "" mean: as the data has it."""


class Settings:
    """A run configuration, checked. Options of data, training and methods: `data.name`, `train.lr`, `focus.M`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        for key in {k.partition(".")[0] for k in config} & {"joins", "leaves"}:
            raise InputError(f"{key}: here the nodes that are connected take part; start and stop nodes instead")
        self.flat = {k: v for k, v in config.items() if "." not in k}
        for key in self.flat.keys() - OURS.keys():
            raise InputError(f"{key}: {nearest(key, OURS)}")
        nested: dict[str, dict[str, Any]] = {"data": {}}
        for key, value in config.items():
            if "." in key:
                table, _, option = key.partition(".")
                nested.setdefault(table, {})[option] = value
        self.named = bool(nested["data"].get("name"))
        if not self.named and any(k != "name" for k in nested["data"]):
            raise InputError("data.name: options of the data are set, but not which data")
        if not self.named:  # every node has data of its own
            nested["data"] = {"name": "folder", "path": "."}
        raw = {**nested, "algorithms": [str(self["algorithm"])], "seeds": [int(self["seed"])]}
        self.experiment = Experiment.parse(raw, "run configuration")

    def __getitem__(self, key: str) -> Any:
        usual, value = OURS[key], self.flat.get(key, OURS[key])
        if isinstance(usual, bool) != isinstance(value, bool):
            raise InputError(f"{key} = {value!r}: expected {'true or false' if usual is False else 'a value'}")
        try:
            found = type(usual)(value)
        except ValueError as error:
            raise InputError(f"{key} = {value!r}: expected a number") from error
        if isinstance(usual, int) and found != value:
            raise InputError(f"{key} = {value!r}: expected a whole number")
        return found

    @property
    def fed(self) -> Federation | None:
        return _federation(self.experiment.model_dump_json(), self["seed"]) if self.named else None

    @property
    def recipe(self) -> Recipe:
        return Recipe() if self.fed is None else self.fed.recipe

    @property
    def model(self) -> Callable[[], nn.Module]:
        if self["model"]:
            return parse_model(self["model"])
        if self.recipe.model is None:
            raise InputError('model: the nodes bring their own data, so name the network: model = "mlp:64,32,10"')
        return self.recipe.model

    @property
    def train(self) -> Train:
        return self.experiment.train_options(self.recipe.train)

    @property
    def classes(self) -> int | None:
        if self.fed is not None:
            return self.fed.classes
        said = self["classes"] or len(self.labels) or None
        if self.labels and said != len(self.labels):
            raise InputError(f"classes = {said}, but labels names {len(self.labels)}: say one of them")
        return said

    @property
    def labels(self) -> list[str]:
        return [word.strip() for word in self["labels"].split(",") if word.strip()]

    @property
    def algorithm(self) -> Algorithm:
        true = None if self.fed is None else self.fed.clusters
        found = self.experiment.algorithm(self["algorithm"], None if true is None else int(true.max()) + 1)
        if found.first() is not None:
            raise InputError(f"{found.name} needs the clusters of another run: it cannot be deployed")
        return found

    def job(self, context: Context) -> Job:
        e, columns, classes = number(context), "", self.classes
        if "data" in context.node_config:
            place, names = str(context.node_config["data"]), (self["label"], self["text"])
            found = read_node_data(
                place, self.labels, str(e), self["seed"], self["test"], *names, regression=classes is None
            )
            pair, columns = (found.training, found.testing), found.columns
        elif self.fed is not None and e < self.fed.E:
            pair = self.fed.train(e), self.fed.test(e)
        else:
            raise Refused(f"agent {e} has no data: name its folder with --node-config 'data=\"...\"'")
        pair = checked_pair(pair, classes)
        shared = self.algorithm, self.model, self.train
        return Job(*shared, *pair, classes, secure=self["secure"], columns=columns)

    def run(self) -> Run:
        require("test", self["test"], 0 < self["test"] < 1, "a share between 0 and 1")
        return Run(
            self.algorithm,
            self.model,
            self["agents"] or (self.fed.E if self.fed is not None else 0),
            self["rounds"] or self.recipe.rounds,
            self.classes,
            self.train,
            self["seed"],
            self["fraction"],
            self["minimum"],
            self["timeout"],
            self["wait"],
            self["eval-every"],
            self["best"],
            Path(self["out"]).expanduser() if self["out"] else None,
            self["resume"],
            self.fed.name if self.fed is not None else "federation",
            self["secure"],
        )


def parse_model(text: str) -> Callable[[], nn.Module]:
    """From "mlp:64,32,10", a function that makes it."""
    name, _, sizes = text.partition(":")
    if name not in MODELS:
        raise InputError(f"model = {text!r}: {nearest(name, MODELS)}; sizes stand behind a colon: mlp:64,32,10")
    try:
        make = partial(MODELS[name], *(int(size) for size in sizes.split(",") if size.strip()))
        if not list(make().parameters()):
            raise ValueError
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"model = {text!r}: expected its sizes as whole numbers, as in mlp:64,32,10") from error
    return make


@cache
def _federation(experiment: str, seed: int) -> Federation:
    """Once in a process: a simulation's worker answers many messages."""
    return Experiment.model_validate_json(experiment).federation(seed)


app = client(lambda context: Settings(context.run_config).job(context))
server = server_app(lambda context: Settings(context.run_config).run())
