"""How nodes encode their own data, as text: it travels with every message and goes into the server's folder."""

from __future__ import annotations

import hashlib
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from focusfl.data.own.description import Counted, Description, Form
from focusfl.data.own.schema import Counts
from focusfl.flower.protocol.wire import Refused
from focusfl.run.saved.about import InputsAbout, TargetAbout, Texts

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Index = Annotated[int, Field(ge=0, lt=10_000_000)]


class Record(BaseModel):
    """A record that a peer sent: all that is not expected is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DescriptionAbout(Record):
    """`Description` as text."""

    inputs: InputsAbout
    mean: list[Number] | None
    deviation: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None
    classes: Annotated[int, Field(ge=1, le=1_000_000)] | None
    labels: Texts
    target: TargetAbout | None


def to_text(description: Description) -> str:
    """Return a description as text."""
    inputs, target = description.inputs, description.target
    return DescriptionAbout(
        inputs=InputsAbout.of(inputs),
        mean=None if inputs.mean is None else inputs.mean.flatten().tolist(),
        deviation=None if inputs.deviation is None else inputs.deviation.flatten().tolist(),
        classes=description.classes,
        labels=list(description.labels),
        target=None if target is None else TargetAbout(mean=target[0], deviation=target[1]),
    ).model_dump_json()


def from_text(text: str) -> Description:
    """Read a description back.

    Raises:
        Refused: It is not one.
    """
    try:
        about = DescriptionAbout.model_validate_json(text)
        shape = tuple(about.inputs.shape)
        scaling = [None if v is None else torch.tensor(v).reshape(shape) for v in (about.mean, about.deviation)]
        inputs = about.inputs.inputs(*scaling)
    except (ValidationError, ValueError, RuntimeError) as error:
        raise Refused("the description of the data cannot be read") from error
    target = None if about.target is None else (about.target.mean, about.target.deviation)
    return Description(inputs, about.classes, tuple(about.labels), target)


class FormAbout(Record):
    """What a node says about its files when it enrolls: the columns sorted, so that equal forms are equal texts."""

    kind: str
    columns: Texts
    shape: list[Index]

    @staticmethod
    def text_of(form: Form) -> str:
        about = FormAbout(kind=form.kind, columns=sorted(form.columns), shape=list(form.shape))
        return about.model_dump_json()


class CountedAbout(Record):
    """`Counted` as text."""

    columns: list[Annotated[list[Count], Field(min_length=8, max_length=8)]]
    occupied: list[Count]
    known: list[Number]
    total: list[Number]
    labels: Annotated[list[Count], Field(min_length=3, max_length=3)]
    n: Annotated[int, Field(ge=1)]
    target: Number

    @staticmethod
    def of(counted: Counted) -> CountedAbout:
        return CountedAbout(
            columns=[list(counts) for counts in counted.columns],
            occupied=list(counted.occupied),
            known=counted.known.tolist(),
            total=counted.total.tolist(),
            labels=list(counted.labels),
            n=counted.n,
            target=counted.target,
        )

    def counted(self) -> Counted:
        columns = tuple(Counts(*counts) for counts in self.columns)
        known, total = np.array(self.known, float), np.array(self.total, float)
        return Counted(columns, tuple(self.occupied), known, total, tuple(self.labels), self.n, self.target)


class Request(Record):
    """What the server asks of each node: to count, or, if there are counts, to add up differences and names.

    Attributes:
        columns: The columns of the table, in the order in which they are counted.
        counted: The sums of the first step; None in the first step.
        cells: The cells of the table of names.
        salt: Another one makes other hashes.
    """

    columns: Texts
    counted: CountedAbout | None = None
    cells: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    salt: Count = 0


def request_digest(signature: str, key: str, request: str) -> bytes:
    """Return the hash of what a node's masked numbers are computed from, besides its data."""
    return hashlib.sha256(repr(("describe", signature, key, request)).encode()).digest()
