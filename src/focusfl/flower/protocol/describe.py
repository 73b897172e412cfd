"""The server's side of the exchange before training: what all nodes must know of all data, found from sums.

    step 1   counts per column, sums of numbers and targets, buckets of hashed words
    step 2   sums of squared differences from the means of step 1; names of categories and classes (names.py)

In a secure run both are secure sums. `own_node.py` is the node's side, `data/own/description.py` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import ValidationError

from focusfl.data.own.description import (
    BUCKETS,
    Counted,
    Description,
    Form,
    Reading,
    Spread,
    as_kind,
    counts_of,
    describe,
)
from focusfl.data.own.moments import Floats, total
from focusfl.data.own.schema import Counts
from focusfl.flower.protocol.description import CountedAbout, FormAbout, Request, request_digest
from focusfl.flower.protocol.exchange import FalseSum, RoundFailed, TooFewReplies
from focusfl.flower.protocol.names import WIDTH, Unreadable, cells_for, read_names
from focusfl.flower.protocol.own_node import SMALL
from focusfl.flower.protocol.roster import Roster, one_line, run_signature
from focusfl.flower.protocol.secure_round import masked_sum, server_trusts, without_culprits
from focusfl.flower.protocol.wire import Refused, checked_array, known_records
from focusfl.flower.secure_sums.exact import DIGITS, from_digits
from focusfl.flower.secure_sums.server import SecureSum
from focusfl.run.settings import majority
from focusfl.util.errors import InputError

TRIES = 5  # attempts, if too few nodes reply or names cannot be read
WHAT = "before training"
LARGEST = float(np.finfo(np.float32).max)
Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, Floats]


@dataclass
class Describing:
    """The exchange of one run, with the nodes that are connected.

    Attributes:
        roster: The nodes.
        reading: How they read their files.
    """

    roster: Roster
    reading: Reading

    def run(self) -> Description:
        """Find the description; nodes that cannot answer are left out, and named.

        Raises:
            TooFewReplies: Too few nodes replied, several times.
            InputError: The nodes' data cannot be used together.
        """
        wait = self.roster.settings.wait
        for attempt in range(TRIES):
            self.roster.gather(0, {}, begin=True, wait=wait)
            try:
                return self._attempt(attempt)
            except RoundFailed as why:
                if attempt == TRIES - 1:
                    raise
                self.roster.log(f"{why}; waiting for nodes, then trying again")
        raise AssertionError

    def _attempt(self, attempt: int) -> Description:
        """Take both steps over the same nodes: if some fail in the second, both are repeated without them."""
        form, excluded = self._form(), dict[int, str]()
        while True:
            answered, first = self._sum(Request(columns=list(form.columns)), self._first_shapes(form), excluded)
            counted = counted_of(first)
            asked = counted.named(self.reading, form)
            cells = cells_for([counted.occupied[j] for j in asked], attempt)
            about = CountedAbout.of(counted)
            request = Request(columns=list(form.columns), counted=about, cells=cells, salt=attempt)
            also, second = self._sum(request, self._second_shapes(form, cells), excluded, answered)
            if also == answered or self.roster.settings.secure:  # two secure sums would tell who differs
                break
            left = sorted(set(answered) - set(also))
            excluded |= {e: "its data do not fit those of the others" for e in left if e not in excluded}
            self.roster.log(f"{WHAT}: counting again without agents {left}")
        spread = Spread(int(second["n"]), second.get("squares", np.zeros(0)), float(second["target"]))
        names = _read(second["names"], len(answered), attempt) if cells else {}
        return describe(self.reading, form, counted, spread, names)

    def _form(self) -> Form:
        """Return the form of the nodes' files; columns are in the order of the agent with the lowest number."""
        by_agent = {self.roster.hellos[node].agent: self.roster.hellos[node] for node in self.roster.nodes.values()}
        if not by_agent:
            raise TooFewReplies(f"{WHAT}: no agent is connected")
        hello = by_agent[min(by_agent)]
        try:
            about = FormAbout.model_validate_json(hello.columns)
            kind = as_kind(about.kind)
        except (ValidationError, InputError) as why:
            raise TooFewReplies(f"{WHAT}: agent {hello.agent} does not say what its files are") from why
        names, order = about.columns, hello.order
        if sorted(order) == list(range(len(names))):
            names = [names[j] for j in order]
        return Form(kind, tuple(names), tuple(about.shape))

    def _first_shapes(self, form: Form) -> Shapes:
        columns, features = len(form.columns), form.sums(self.reading)
        shapes: Shapes = {"columns": (columns, len(Counts._fields)), "seen": (columns + 1, BUCKETS)}
        return shapes | {"known": (features,), "total": (features,), "labels": (3,), "n": (), "target": ()}

    def _second_shapes(self, form: Form, cells: int) -> Shapes:
        return {"n": (), "squares": (form.sums(self.reading),), "target": (), "names": (cells, WIDTH)}

    def _sum(
        self, request: Request, shapes: Shapes, excluded: dict[int, str], agents: list[int] | None = None
    ) -> tuple[list[int], Arrays]:
        """Return which agents answered, and the sums over them."""
        asked = sorted(self.roster.nodes if agents is None else agents)
        asked = [e for e in asked if e not in excluded]
        wanted = {name: shape for name, shape in shapes.items() if math.prod(shape)}
        text = request.model_dump_json()
        if self.roster.settings.secure:
            return self._secure_sum(text, wanted, asked)
        replies, dropped = self._replies(text, wanted, asked, request.salt)
        dropped |= self._other_labels(replies)
        for e, why in sorted(dropped.items()):
            self.roster.log(f"{WHAT}: left out: agent {e}: {why}")
        answered = [e for e in sorted(replies) if e not in dropped]
        self._require_enough(len(answered))
        return answered, {name: total(replies[e][name] for e in answered) for name in wanted}

    def _require_enough(self, answered: int) -> None:
        least = max(self.roster.settings.minimum, majority(self.roster.E))
        if answered < least:
            raise TooFewReplies(f"{WHAT}: {answered} of {self.roster.E} agents replied, at least {least} must")

    def _replies(
        self, text: str, shapes: Shapes, agents: list[int], salt: int
    ) -> tuple[dict[int, Arrays], dict[int, str]]:
        """Return each agent's sums, and why other agents' sums are not used."""
        messages = self._messages("query.describe", text, agents)
        found, dropped = dict[int, Arrays](), dict[int, str]()
        for e, reply in self.roster.send(messages, self.roster.settings.timeout).items():
            try:
                if isinstance(reply, str):
                    raise Refused(reply)
                arrays = _arrays(reply, shapes)
                require_possible(arrays, self.roster.examples[e], salt=salt)
            except Refused as why:
                dropped[e] = one_line(str(why))
            else:
                found[e] = arrays
        return found, dropped

    def _other_labels(self, replies: Mapping[int, Arrays]) -> dict[int, str]:
        """Return the agents whose labels are words where those of most are numbers, or the other way round."""
        words = {e: bool(arrays["labels"][0]) for e, arrays in replies.items() if "labels" in arrays}
        usual = 2 * sum(words.values()) > len(words)
        if 2 * sum(words.values()) == len(words):
            return {}
        kinds = ("numbers", "words")
        why = f"its labels are {kinds[not usual]}, but those of most agents are {kinds[usual]}"
        return {e: why for e, found in words.items() if found != usual}

    def _secure_sum(self, text: str, shapes: Shapes, agents: list[int]) -> tuple[list[int], Arrays]:
        roster = self.roster
        signature = run_signature(roster.algorithm, roster.settings)
        about = request_digest(signature, roster.key, text)
        masked = {name: shape if name in SMALL else (*shape, DIGITS) for name, shape in shapes.items()}
        least = max(roster.settings.minimum, majority(roster.E))

        def attempt(excluded: dict[int, str], dropped: dict[int, str]) -> tuple[list[int], Arrays]:
            sums = SecureSum(masked, least, about, server_trusts())
            dropped.update(excluded)
            found, _ = masked_sum(
                roster, sums, agents, lambda who: self._messages("train.masked", text, who), dropped, WHAT
            )
            return sorted(sums.answered), {
                name: np.rint(v) if name in SMALL else from_digits(v) for name, v in found.items()
            }

        answered, arrays = without_culprits(attempt, WHAT, roster.log)
        try:
            require_possible(arrays, sum(roster.examples[e] for e in answered), len(answered))
        except Refused as why:
            raise FalseSum(
                f"{WHAT}: the sum over agents {answered} cannot be one of honest numbers: {why}"
            ) from why
        return answered, arrays

    def _messages(self, kind: str, text: str, agents: list[int]) -> dict[int, Message]:
        records = {"describe": ConfigRecord({"request": text})}
        return {e: self.roster.message(kind, self.roster.nodes[e], 0, records, begin=True) for e in agents}


def _arrays(content: RecordDict, shapes: Shapes) -> Arrays:
    known_records(content, "sums")
    record = content.array_records.get("sums", ArrayRecord())
    if set(record) != set(shapes):
        raise Refused("its sums are not those that were asked for")
    arrays = {name: checked_array(name, record[name], shape, "float64") for name, shape in shapes.items()}
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise Refused(f"{name}: NaN or infinite")
    return arrays


def require_possible(arrays: Mapping[str, Floats], n: int, nodes: int = 1, salt: int = 0) -> None:
    """Refuse sums that no honest nodes could have sent.

    Args:
        arrays: The sums.
        n: The training examples with which the nodes enrolled.
        nodes: The number of nodes in the sum.
        salt: That of the names.

    Raises:
        Refused: They are not possible; the message says which.
    """

    def require(ok: bool, what: str) -> None:
        if not ok:
            raise Refused(f"its sums are not possible: {what}")

    require(float(arrays["n"]) == n, f"it enrolled with {n} training examples, but counts {float(arrays['n']):g}")
    for name in ("columns", "known", "labels", "seen", "names"):
        values = arrays.get(name, np.zeros(1))
        require(bool((values >= 0).all() and (values == np.rint(values)).all()), f"{name} are no counts")
    require(bool((arrays.get("seen", np.zeros(1)) <= nodes).all()), "seen more than once")
    if "columns" in arrays:
        _require_counts(arrays["columns"], n, nodes, require)
    if "known" in arrays:
        require(bool((arrays["known"] <= n).all()), "more known numbers than examples")
        limit = arrays["known"] * LARGEST
        require(bool((np.abs(arrays["total"]) <= limit).all()), "its total is too large")
    if "labels" in arrays:
        require(arrays["labels"].sum() >= n, "fewer labels than examples")
        require(abs(float(arrays["target"])) <= n * LARGEST, "its targets are too large")
    if "squares" in arrays:
        require(bool((arrays["squares"] >= 0).all()), "squares are negative")
    require("labels" in arrays or float(arrays["target"]) >= 0, "squares are negative")
    if nodes == 1 and "names" in arrays:
        try:
            read_names(arrays["names"], 1, salt)
        except Unreadable as why:
            raise Refused(f"its sums are not possible: {why}") from why


def _require_counts(columns: Floats, n: int, nodes: int, require: Callable[[bool, str], None]) -> None:
    for counts in counts_of(columns):
        smaller = [(counts.cells, counts.rows), (n, counts.rows), (counts.like_names, nodes)]
        smaller += [(k, counts.numbers) for k in (counts.fractions, counts.different_numbers)]
        smaller += [(k, counts.words) for k in (counts.different_words, counts.dates)]
        require(all(a <= b for a, b in smaller), f"the counts of a column, {tuple(counts)}")


def _read(names: Floats, nodes: int, salt: int) -> dict[int, set[str]]:
    try:
        return read_names(names, nodes, salt)
    except Unreadable as why:
        raise FalseSum(f"{WHAT}: {why}") from why


def counted_of(arrays: Mapping[str, Floats]) -> Counted:
    """Return the sums of the first step as what they are."""
    none = np.zeros(0)
    occupied = tuple(int(k) for k in (arrays["seen"] > 0).sum(-1))
    columns = counts_of(arrays["columns"]) if "columns" in arrays else ()
    labels = tuple(int(k) for k in arrays["labels"])
    known, summed = arrays.get("known", none), arrays.get("total", none)
    return Counted(columns, occupied, known, summed, labels, int(arrays["n"]), float(arrays["target"]))
