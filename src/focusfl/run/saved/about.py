"""About: what a saved model is, as model.json holds it. Loading checks every value."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from focusfl import __version__
from focusfl.algorithms import ALGORITHMS
from focusfl.core import Algorithm
from focusfl.core.train import Train
from focusfl.data.own.inputs import Inputs, Kind
from focusfl.data.own.schema import MAX_VALUES, Column, ColumnKind, MissingOption, Schema
from focusfl.models.describe import LinearSpec, MlpSpec, OwnSpec, ResNet18Spec, SkipMlpSpec, TextSpec
from focusfl.util.errors import InputError

FORMAT: Final = "focusfl-model"
VERSION = 1  # of the format that this release writes
Text = Annotated[str, Field(max_length=10_000)]
Texts = Annotated[list[Text], Field(max_length=100_000, fail_fast=True)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
OWN_LOSS = "own"
MAX_OPTION = 1_000_000  # of an option of a method that comes from a file: it may be a number of models
SEPARATE = ("mean", "deviation", "schema")  # fields of Inputs that are stored in a form of their own
MAX_NUMBERS = 10_000_000  # in one example


class ColumnAbout(BaseModel):
    """One column of a table: see `Column` in data/own/schema.py."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Text
    kind: ColumnKind
    mean: Annotated[float, Field(allow_inf_nan=False, ge=-3.4e38, le=3.4e38)]
    missing: bool
    values: Annotated[list[Text], Field(max_length=MAX_VALUES, fail_fast=True)]


class TableAbout(BaseModel):
    """How a table is read: see `Schema` in data/own/schema.py."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    columns: Annotated[list[ColumnAbout], Field(max_length=100_000, fail_fast=True)]
    missing: MissingOption

    @staticmethod
    def of(schema: Schema) -> TableAbout:
        columns = [ColumnAbout(**vars(column) | {"values": list(column.values)}) for column in schema.columns]
        return TableAbout(columns=columns, missing=schema.missing)

    def schema_of(self) -> Schema:
        columns = (Column(**vars(column) | {"values": tuple(column.values)}) for column in self.columns)
        return Schema(tuple(columns), self.missing)


class InputsAbout(BaseModel):
    """`Inputs` without the scaling, whose tensors are with the weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Kind
    shape: list[Annotated[int, Field(ge=1, le=10_000_000)]] = Field(max_length=8)
    tokens: bool
    columns: Texts
    label: Text
    text: Text
    own_encoder: bool
    columns_digest: Text
    scaled: bool
    table: TableAbout | None = None

    @field_validator("shape")
    @classmethod
    def _not_too_large(cls, shape: list[int]) -> list[int]:
        if math.prod(shape) > MAX_NUMBERS:
            raise ValueError(f"an example has more than {MAX_NUMBERS:,} numbers")
        return shape

    @staticmethod
    def of(inputs: Inputs) -> InputsAbout:
        values = {f.name: getattr(inputs, f.name) for f in fields(inputs) if f.name not in SEPARATE}
        values |= {"shape": list(inputs.shape), "columns": list(inputs.columns)}
        values["table"] = None if inputs.schema is None else TableAbout.of(inputs.schema)
        return InputsAbout(**values, scaled=inputs.mean is not None)

    def inputs(self, mean: torch.Tensor | None, deviation: torch.Tensor | None) -> Inputs:
        """Return the form of the examples, with the scaling that was stored with the weights.

        Raises:
            InputError: The table has other features than the examples.
        """
        values = self.model_dump(exclude={"scaled", "table"})
        values |= {"shape": tuple(self.shape), "columns": tuple(self.columns)}
        schema = None if self.table is None else self.table.schema_of()
        if schema is not None and schema.features != values["columns"]:
            raise InputError("the columns of its table do not give the features that it names")
        return Inputs(**values, mean=mean, deviation=deviation, schema=schema)


class NewcomerAbout(BaseModel):
    """How an agent that did not train was assigned.

    Attributes:
        examples: The number of its examples.
        labelled: Whether they had labels; otherwise the models' confidence decided.
        sure: Without labels: how sure that is, 0 to 1.
        pi: Its labels, [M]; None if the method has none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    examples: Count
    labelled: bool
    sure: Annotated[float, Field(ge=0, le=1.001)] | None
    pi: list[Annotated[float, Field(ge=0, le=1.001)]] | None


class TargetAbout(BaseModel):
    """The scale of a regression's targets."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Annotated[float, Field(allow_inf_nan=False, ge=-1e30, le=1e30)]
    deviation: Annotated[float, Field(allow_inf_nan=False, gt=0, le=1e30)]


class About(BaseModel):
    """What was trained, on whom, with what, and how well.

    Attributes:
        format: Says that this is a model of focusfl.
        version: The version of the format.
        focusfl: The release that wrote it.
        torch: The release of torch that trained it.
        method: The method's key in ALGORITHMS, or "module:Class".
        title: The method's name as its paper writes it.
        params: The method's options.
        network: The network.
        classes: The number of classes; None for regression.
        several: Whether an example has several labels; `classes` is then their number.
        loss: The name of the loss with its options; "own" if it is the user's own.
        labels: The names of the classes, if they have names.
        inputs: The form of an example.
        agents: The agents' names; none in a server's model.
        received: Whether it is what one node received and holds.
        train: The options of local training.
        seed: The seed.
        rounds: The number of rounds.
        data: The name of the data.
        fingerprint: The sha256 of all examples, or "" where no machine has seen them all.
        results: The row of results.json without its seconds, so that equal runs save equal files; None if it is not
            known here.
        newcomer: How the only agent was assigned, if it did not train.
        adapted: Whether the agents adapted the shared model to their own data.
        target: The mean and deviation by which a regression's targets were scaled; None if they were not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["focusfl-model"] = FORMAT
    version: Annotated[int, Field(ge=1, le=VERSION)] = VERSION
    focusfl: Text = __version__
    torch: Text = str(torch.__version__)
    method: Text
    title: Text
    params: dict[str, Any]
    network: Annotated[
        MlpSpec | SkipMlpSpec | LinearSpec | ResNet18Spec | TextSpec | OwnSpec,
        Field(discriminator="kind"),
    ]
    classes: Annotated[int, Field(ge=1, le=1_000_000)] | None
    several: bool
    loss: Text
    labels: Texts
    inputs: InputsAbout
    agents: Texts
    received: bool
    train: dict[str, Any]
    seed: Count
    rounds: Count
    data: Text
    fingerprint: Text
    results: dict[str, Any] | None
    newcomer: NewcomerAbout | None = None
    adapted: bool = False
    target: TargetAbout | None = None

    def algorithm(self, own: Algorithm | None = None) -> Algorithm:
        """Return the method with its options.

        Args:
            own: A method of the user's own, which no name finds.

        Raises:
            InputError: The method is not known, or its options do not fit.
        """
        if own is not None:
            return own
        if self.method not in ALGORITHMS:
            hint = "pass algorithm=, or allow_code=True (--allow-code) if it is module:Class"
            raise InputError(f"its method {self.method!r} is not one of focusfl's: {hint}")
        method: Algorithm = options_of(ALGORITHMS[self.method], self.params)
        return method

    def train_options(self) -> Train:
        """Return the options of local training."""
        options: Train = options_of(Train, self.train)
        return options


def options_of(kind: Any, options: dict[str, Any]) -> Any:
    """Build a dataclass from options in a file, which are checked.

    Raises:
        InputError: An option is unknown, of another type or out of range.

    Example:
        >>> options_of(Train, {"lr": 0.5}).lr
        0.5
    """
    unknown = sorted(options.keys() - {f.name for f in fields(kind) if f.init})
    if unknown:
        raise InputError(f"{kind.__name__}: {unknown[0]!r} is not an option")
    try:  # as JSON, where a list may be a tuple but a text is no number
        made = TypeAdapter(kind).validate_json(json.dumps(options), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    for f in fields(kind):
        value = getattr(made, f.name)
        if isinstance(value, int) and abs(value) > MAX_OPTION:
            raise InputError(f"{kind.__name__}: {f.name} = {value} is out of range")
    return made
