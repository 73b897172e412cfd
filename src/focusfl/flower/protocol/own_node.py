"""A node with files of its own, before it knows how to encode them: it adds up what all nodes need to know.

Only sums over its examples leave the node, masked in a secure run; and, for columns that may be categories and for
labels, which values there are. `description.py` has the messages, `describe.py` the server's side.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from pydantic import ValidationError

from focusfl.core import Algorithm
from focusfl.data.own.description import Description
from focusfl.data.own.moments import Floats
from focusfl.data.own.node import OwnData
from focusfl.flower.protocol import secure_round
from focusfl.flower.protocol.description import FormAbout, Request, from_text, request_digest
from focusfl.flower.protocol.names import table_of
from focusfl.flower.protocol.roster import run_signature
from focusfl.flower.protocol.wire import Refused
from focusfl.flower.secure_sums.exact import to_digits
from focusfl.run.settings import Settings

if TYPE_CHECKING:
    from focusfl.flower.protocol.node import Job

LOGGER = logging.getLogger("focusfl")
T = TypeVar("T")
SMALL = ("seen", "names")  # whole numbers below 2^16, which a secure sum takes as they are


@dataclass(frozen=True)
class OwnJob:
    """What a node needs to know before its data are described.

    Attributes:
        own: Its data, as they were read.
        algorithm: The method.
        settings: The options of the run.
        make: Makes the job, once it is known how the data are encoded.
    """

    own: OwnData
    algorithm: Algorithm
    settings: Settings
    make: Callable[[Description], Job]

    def job(self, text: str) -> Job:
        """Return the job of a node that was sent this description."""
        return replace(self.make(from_text(text)), description=text)


def told_description(content: RecordDict) -> str | None:
    """Return the description in a message, if there is one."""
    record = content.config_records.get("description")
    return None if record is None else str(record["json"])


def require_secure(context: Context, settings: Settings) -> None:
    """Refuse a run in the open, if the node's own configuration says so."""
    if context.node_config.get("secure", False) and not settings.secure:
        raise Refused("this node takes part in secure runs only (secure in its node configuration)")


def privately(make: Callable[[], T]) -> T:
    """Return what a function makes of this node's data; write errors to this node's log only.

    Flower sends the server what a ClientApp raises, and a message about data may quote a cell or a label.
    """
    try:
        return make()
    except Refused:  # its message contains no data
        raise
    except Exception:
        LOGGER.exception("this node's data cannot be used")
    raise Refused("this node's data cannot be used; its own log says why")


class OwnNode:
    """A node that handles one message before its data are described."""

    def __init__(self, job: OwnJob, e: int, message: Message, context: Context) -> None:
        require_secure(context, job.settings)
        self.job, self.own, self.e, self.content = job, job.own, e, message.content
        self.key = str(self.content.config_records["ask"]["key"])

    def enroll(self) -> RecordDict:
        """Report which agent this is, and the form of its files."""
        form, reading = self.own.form, self.own.reading
        given = -1 if reading.given_classes is None else reading.given_classes
        hello: dict[str, Any] = {"agent": self.e, "n": self.own.n, "columns": FormAbout.text_of(form)}
        hello |= {"job": run_signature(self.job.algorithm, self.job.settings), "classes": given}
        hello |= {"order": [sorted(form.columns).index(name) for name in form.columns]}
        return RecordDict({"hello": ConfigRecord(hello)})

    def describe(self) -> RecordDict:
        """Send the sums over this node's examples, unmasked."""
        if self.job.settings.secure:
            raise Refused("this node takes part in a secure run and sends its sums only masked")
        arrays, _ = self._sums()
        return RecordDict({"sums": ArrayRecord({name: Array(values) for name, values in arrays.items()})})

    def masked(self, stage: str, context: Context) -> RecordDict:
        """Take part in one stage of a secure sum."""
        values, about = None, b""
        if stage == "masked":
            arrays, request = self._sums()
            digits = {name: v if name in SMALL else to_digits(v) for name, v in arrays.items()}
            values = {name: torch.from_numpy(v) for name, v in digits.items()}
            about = request_digest(run_signature(self.job.algorithm, self.job.settings), self.key, request)
        return secure_round.reply(stage, self.e, self.content, context, values, about)

    def _sums(self) -> tuple[dict[str, Floats], str]:
        """Return what this step adds up, and the request that it answers."""
        record = self.content.config_records.get("describe", ConfigRecord())
        text = str(record.get("request", ""))
        try:
            request = Request.model_validate_json(text)
        except ValidationError as error:
            raise Refused("the server's request cannot be read") from error
        return privately(lambda: self._arrays(request)), text

    def _arrays(self, request: Request) -> dict[str, Floats]:
        form = self.own.form
        columns = list(request.columns)
        if sorted(columns) != sorted(form.columns):
            raise Refused("the server asks for other columns than this node has")
        if request.counted is None:
            arrays = self.own.counted(columns)
        else:
            counted = request.counted.counted()
            asked_of = form._replace(columns=tuple(columns))
            if (len(counted.columns), len(counted.known)) != (len(columns), form.sums(self.own.reading)):
                raise Refused("the server's request does not fit this node's data")
            self.own.require_numbers(columns, counted.columns)
            arrays = self.own.spread(columns, counted.means, counted.target_mean)
            asked = counted.named(self.own.reading, asked_of)
            arrays["names"] = table_of(self.own.names(columns, asked), request.cells, request.salt)
        if not all(np.isfinite(v).all() for v in arrays.values()):
            raise Refused("a label of this node is not finite")
        return {name: v for name, v in arrays.items() if math.prod(v.shape)}
