"""TrainedModel: what a run leaves behind for use: every agent's predictor, and the means to take in newcomers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import Adapted
from focusfl.core import Algorithm, Data, State
from focusfl.core.train import Train
from focusfl.core.tree import flatten, repeat, take, tree_map
from focusfl.data.check import as_data, check_agents
from focusfl.data.own.inputs import Encode, Inputs
from focusfl.engines.one_agent import LocalAgent
from focusfl.models.task import Task
from focusfl.run.saved.about import OWN_LOSS, About, InputsAbout, NewcomerAbout
from focusfl.run.saved.given_labels import named_labels
from focusfl.run.saved.members import Mixture, members, predict
from focusfl.run.saved.new_data import new_examples, warn
from focusfl.run.saved.unlabelled import Unlabelled, how_sure
from focusfl.util.errors import InputError, nearest, refuse_errors, require_instance

Format = Literal["onnx", "pt2", "safetensors"]


@dataclass(frozen=True)
class TrainedModel:
    """A trained federation.

    Attributes:
        algorithm: The method, with its options.
        task: The network with its loss.
        server: The server's state; if `received`, what the only agent received of it.
        states: The agents' states, stacked.
        agents: The agents' names, [A]; none for the models of a server, which holds no agent's state.
        inputs: The form of an example, with its scaling.
        labels: The names of the classes, if they have names.
        train: The options of local training.
        seed: The seed of the run.
        received: Whether this is what one node holds.
        about: What was trained, on whom, and how well: the model card.
    """

    algorithm: Algorithm
    task: Task
    server: State
    states: State
    agents: tuple[str, ...]
    inputs: Inputs
    labels: tuple[str, ...]
    train: Train
    seed: int
    received: bool
    about: About

    @property
    def classes(self) -> int | None:
        """The number of classes; None in regression."""
        return self.task.classes

    def number(self, agent: int | str) -> int:
        """Return the number of an agent given by its name or number.

        A text is a name. Digits that are no name are a number, unless names are made of digits themselves.

        Raises:
            InputError: There is no such agent.
        """
        if not self.agents:
            raise InputError("this is a server's model, which holds no agent's labels: assign a newcomer first")
        if isinstance(agent, str):
            if agent in self.agents:
                return self.agents.index(agent)
            if not agent.isdecimal() or len(agent) > 9 or any(name.isdecimal() for name in self.agents):
                raise InputError(f"agent = {agent!r}: {nearest(agent, self.agents)}")
            agent = int(agent)
        try:
            e = index(agent)
        except TypeError:
            e = None
        if e is None or isinstance(agent, bool):
            call = f"the agent comes first, its name or number: predict({self.agents[0]!r}, x)"
            raise InputError(f"agent: found {type(agent).__name__}; {call}")
        if not 0 <= e < len(self.agents):
            raise InputError(f"agent = {e}: there are agents 0 to {len(self.agents) - 1}")
        return e

    def predict(self, agent: int | str, x: Any, encode: Encode | None = None) -> Tensor:
        """Predict with the model of one agent.

        Args:
            agent: The agent's name (a text) or number (an integer, from 0).
            x: Raw examples: an array in the order of `inputs.columns`, a data frame, a table or dict of columns in
                any order, or texts. They are scaled as the training data were. Names of columns may differ from
                those of training in capital letters, blanks, - and _.
            encode: A function from texts to numbers, if the model was trained with one of your own.

        Returns:
            Class probabilities [n, C], or values [n] in regression.

        Warns:
            UserWarning: A table has values that training did not have, lacks cells that training had, or a column
                has another name.

        Raises:
            InputError: There is no such agent, or the examples do not fit.
        """
        view, state = self.state_of(agent)
        new = new_examples(self.inputs, x)
        predictions = self._predict(view, state, self.inputs.tensor(new.x, encode))
        warn(new.notes, stacklevel=2)
        return predictions

    def assign(self, x: Any, y: Any = None, encode: Encode | None = None) -> Newcomer:
        """Label a new agent that did not train: one E step on its data. The models do not change.

        Without labels, each model's own confidence takes the place of its loss: the negative logarithm of the
        probability of its most probable class. That finds the models that know such examples; it cannot tell apart
        models that are equally sure of different answers.

        Args:
            x: The new agent's raw examples, as for `predict`.
            y: Their labels: names of classes, or their whole numbers, or the values of a regression, in a list, an
                array or a column. True or 1.0 is refused where classes have names. None: the label column of a
                table, if it has one; leave that column out to assign without labels.
            encode: As for `predict`.

        Raises:
            InputError: The data does not fit, or the method cannot take newcomers.
        """
        with refuse_errors("the newcomer cannot be assigned"):
            new = new_examples(self.inputs, x)
            inputs = self.inputs.tensor(new.x, encode)
            newcomer = self._assign(inputs, new.y if y is None else y)
            self._predict(newcomer.view, newcomer.state, inputs)  # they must be numbers
        warn(new.notes, stacklevel=2)
        return newcomer

    def _assign(self, x: Tensor, y: Any) -> Newcomer:
        inputs = x.to(self._device, copy=True)  # aligned, as in `_predict`
        form = replace(self.inputs, shape=tuple(inputs.shape[1:]))  # a server does not know the shape
        if y is None:
            unlabelled = Unlabelled(self.task, inputs, self.train, self.seed)
            view, state = self.algorithm.assign(self.server, unlabelled)
            sure = how_sure(self.algorithm, self.server, unlabelled, view, state)
            return Newcomer(self, view, state, form, sure, len(inputs), labelled=False)
        if self.about.loss == OWN_LOSS and self.task.loss.default:
            python = "pass it to ff.load as loss= in Python"
            without = "assign without labels (--no-labels, or leave the label column out)"
            raise InputError(f"its loss is its owner's: {python}, or {without}")
        data = as_data("the newcomer", (inputs, named_labels(y, self.labels, self.classes)), self.inputs.tokens)
        if self.about.several and data.y.dim() != 2:
            raise InputError(f"the labels: expected [{len(data.x)}, {self.classes}], each 0 or 1: one per label")
        if self.classes is None:
            data = Data(data.x, data.y.float())
        check_agents([data, data], self.classes, "training")
        data = Data(data.x.to(self._device), data.y.to(self._device))
        held_out = len(data.y) // 5  # an adapted method judges by them what suits the newcomer
        order = torch.from_numpy(np.random.default_rng(self.seed).permutation(len(data.y)))
        validation, training = (Data(data.x[rows], data.y[rows]) for rows in (order[:held_out], order[held_out:]))
        lr = self.train.lr_at(0, 1)
        labelled = LocalAgent(self.task, training, self.train, lr, self.seed, 0, 0, validation)
        agent = labelled if isinstance(self.algorithm, Adapted) else labelled.on("all")
        return Newcomer(self, *self.algorithm.assign(self.server, agent), form, examples=len(inputs))

    def module(self, agent: int | str) -> Mixture:
        """Return an agent's predictor as one torch module, from raw examples to probabilities or values."""
        return Mixture(self.task, members(self.algorithm, *self.state_of(agent)), self.inputs)

    def state_dict(self, agent: int | str) -> dict[str, Tensor]:
        """Return the predictor of an agent as a plain torch state dict, that of `module(agent)`.

        `members.K.NAME` is tensor NAME of the K-th network. `weights` are the networks' shares in the mixture.
        Those with a share of 0 are left out. `mean` and `deviation` scale the inputs, if they are scaled.
        """
        return {k: v.clone() for k, v in self.module(agent).state_dict().items()}

    def export(self, agent: int | str, format: Format, path: str | Path) -> Path:
        """Write an agent's predictor for use without focusfl, and check that the file gives the same outputs.

        Args:
            agent: The agent's name or number.
            format: "onnx", "pt2" (torch.export) or "safetensors" (the state dict).
            path: The file to write.

        Returns:
            The file.

        Raises:
            InputError: The format is unknown, needs a package that is missing, or cannot hold this network.
        """
        from focusfl.run.saved.export import export

        return export(self, self.number(agent), format, Path(path))

    def save(self, path: str | Path) -> Path:
        """Write the model to a folder, from which `ff.load` reads it. No example of anybody's data is in it."""
        from focusfl.run.saved.store import save

        require_instance("path", path, (str, Path), "the folder to save to")
        return save(self, Path(path))

    def state_of(self, agent: int | str) -> tuple[State, State]:
        """Return what an agent received of the server's state, and its own state."""
        e = self.number(agent)
        view = self.server if self.received else self.algorithm.downlink(self.server, torch.tensor(e))
        return view, take(self.states, e)

    def _predict(self, view: State, state: State, x: Tensor) -> Tensor:
        with refuse_errors("the examples do not fit the model"):
            x = x.to(self._device, copy=True)  # kernels round differently where memory is not aligned
            p = predict(self.algorithm, view, state, self.task, x)
        if not torch.isfinite(p).all():
            row = int((~torch.isfinite(p.reshape(len(p), -1))).any(1).nonzero()[0])
            raise InputError(f"the model predicts NaN or infinity for row {row}: do not use it for such examples")
        return p

    @property
    def _device(self) -> torch.device:
        return next(iter(flatten({"s": self.server, "a": self.states}).values())).device

    def on_cpu(self) -> TrainedModel:
        """Return the same model with its tensors on the cpu."""
        self.task.network.cpu()
        server, states = (tree_map(lambda v: v.cpu(), tree) for tree in (self.server, self.states))
        return replace(self, server=server, states=states)

    def __repr__(self) -> str:
        return f"TrainedModel({self.algorithm}, {len(self.agents)} agents, {self.about.data})"


@dataclass(frozen=True)
class Newcomer:
    """A new agent that joined after training.

    Attributes:
        model: The federation's model.
        view: What the newcomer receives from the server.
        state: Its own state.
        inputs: The form of its examples.
        sure: Without labels: the mean, over resamples of its examples, of the label that is largest; else None.
        examples: The number of examples by which it was assigned.
        labelled: Whether these had labels.
    """

    model: TrainedModel
    view: State
    state: State
    inputs: Inputs
    sure: float | None = None
    examples: int = 0
    labelled: bool = True

    @property
    def pi(self) -> Tensor | None:
        """Its label after one E step, [M]; None if the method has no labels."""
        return self.model.algorithm.label(self.view, self.state)

    def as_model(self, name: str = "newcomer") -> TrainedModel:
        """Return the newcomer's own model, as a node holds it: what it received, and its state.

        Args:
            name: The newcomer's name in that model.
        """
        pi = None if self.pi is None else [float(p) for p in self.pi]
        joined = NewcomerAbout(examples=self.examples, labelled=self.labelled, sure=self.sure, pi=pi)
        changes = {"agents": [name], "received": True, "results": None, "inputs": InputsAbout.of(self.inputs)}
        changes["newcomer"] = joined
        about = self.model.about.model_copy(update=changes)
        states = repeat(self.state, 1)
        parts: dict[str, Any] = {"server": self.view, "states": states, "inputs": self.inputs, "about": about}
        return replace(self.model, agents=(name,), received=True, **parts)

    def predict(self, x: Any, encode: Encode | None = None) -> Tensor:
        """Predict for raw examples x: class probabilities [n, C], or values [n] in regression."""
        new = new_examples(self.inputs, x)
        predictions = self.model._predict(self.view, self.state, self.inputs.tensor(new.x, encode))
        warn(new.notes, stacklevel=2)
        return predictions
