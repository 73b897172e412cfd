"""What a node replies, damaged: it is refused in one line, or it has the form that was asked for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import focusfl as ff
from focusfl.core.tree import flatten
from focusfl.flower.protocol.exchange import Exchange, TooFewReplies
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roster import Roster, run_signature
from focusfl.flower.protocol.wire import Refused, to_arrays
from focusfl.models import mlp
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup

from . import damage
from .harness import CONTROL, Fault, guarded
from .kinds import kind

E, CLASSES = 3, 2
METHODS = (ff.Focus(M=2, init="tied"), ff.FedAvg(), ff.AFL())


class Answering(Roster):
    """A roster whose nodes have replied already; `said` is what was logged."""

    replies: dict[int, RecordDict | str]
    said: list[str]

    def message(self, *_: Any, **__: Any) -> Any:
        return None

    def send(self, messages: dict[int, Any], timeout: float) -> dict[int, RecordDict | str]:
        return {e: self.replies[e] for e in messages}


@cache
def _setup(method: int) -> Setup:
    agents = [(torch.eye(2), torch.tensor([0, 1]))] * E
    fed = ff.Federation.from_agents(agents, test=agents, model=lambda: mlp(2, 3, CLASSES))
    settings = Settings(rounds=2, train=ff.Train(steps=1), engine="serial")
    return Setup.of(METHODS[method], fed, settings=settings)


def _roster(setup: Setup, replies: dict[int, RecordDict | str]) -> Answering:
    said: list[str] = []
    roster = Answering(None, setup.algorithm, setup.settings, CLASSES, E, "00", said.append)  # type: ignore[arg-type]
    roster.nodes, roster.replies, roster.said = {e: e for e in range(E)}, replies, said
    roster.examples = dict.fromkeys(range(E), 1)
    return roster


def _faults(roster: Answering, found: list[Fault]) -> list[Fault]:
    raw = [Fault("raw escape", repr(line)) for line in roster.said if CONTROL.search(line)]
    return found + raw + [Fault("many lines", repr(line)) for line in roster.said if "\n" in line]


def _array(rng: Random, sound: Array) -> Array:
    """Return an array that is wrong: in its numbers, its bytes, or in what it says of itself."""
    dtype, shape, stype, data = sound.dtype, tuple(sound.shape), sound.stype, sound.data
    how = rng.randrange(6)
    if how == 0:
        data = damage.content(rng, data)
    elif how == 1:
        shape = tuple(rng.choice(((), (0,), (10**12,), shape[::-1], (1, *shape), (-1, 2))))
    elif how == 2:
        dtype = rng.choice(("float64", "object", "int8", "O", "\x1b[31m", ""))
    elif how == 3:
        stype = rng.choice(("", "pickle", "numpy.ndarray", "torch"))
    elif how == 4:
        values = np.array(sound.numpy())
        values.flat[rng.randrange(max(1, values.size))] = rng.choice((np.nan, np.inf, 1e30, -1e38, 0))
        return Array(values)
    else:
        return Array(np.array(rng.choice((1.0, [1, 2], [[1.5]], True, "text", [])), dtype=None))
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def _number(rng: Random) -> Any:
    return rng.choice(
        (*damage.NUMBERS[:12], *damage.NOT_FINITE, [0.5, 0.5], [1.0], [float("nan")] * 2, [1e308, -1e308])
    )


def _damaged_arrays(rng: Random, record: ArrayRecord) -> ArrayRecord:
    arrays = dict(record)
    name = rng.choice(sorted(arrays)) if arrays else "w"
    how = rng.randrange(4)
    if how == 0 and arrays:
        arrays[f"{name}{rng.choice(('x', '/', chr(27)))}"] = arrays.pop(name)
    elif how == 1:
        arrays.pop(name, None)
    elif how == 2:
        arrays[rng.choice(damage.NASTY_TEXT).replace("\udcff", "?")] = Array(np.zeros(2))
    elif arrays:
        arrays[name] = _array(rng, arrays[name])
    return ArrayRecord(arrays)


@kind
def reply_upload(rng: Random, folder: Path) -> list[Fault]:
    setup = _setup(rng.randrange(len(METHODS)))
    server, _ = setup.start()
    _, like = expected(setup.algorithm, server, setup.task, 0.1)
    replies: dict[int, RecordDict | str] = {}
    for e in range(E):
        records: dict[str, Any] = {"add": to_arrays(like.add), "each": to_arrays(like.each)}
        if e == 0:
            name = rng.choice(("add", "each"))
            how = rng.randrange(8)
            if how == 0:
                del records[name]
            elif how == 1:
                records[name] = rng.choice((ConfigRecord({"a": 1}), MetricRecord({"a": _number(rng)})))
            elif how == 2:
                records[rng.choice(("lost", "x", "state"))] = ConfigRecord({"\x1b": b"\0", "b": [1.0]})
            else:
                records[name] = _damaged_arrays(rng, records[name])
        replies[e] = RecordDict(records)
    roster = _roster(setup, replies)
    exchange = Exchange(roster, setup.task)
    result, faults = guarded(lambda: exchange.round(server, 0, np.arange(E)), (Refused, TooFewReplies))
    if result is not None:
        shapes = {k: v.shape for k, v in flatten(like.add).items()}
        fits = {k: v.shape for k, v in flatten(result.add).items()} == shapes
        if not fits or not all((v.abs() < 1e3).all() for v in flatten(result.add).values()):
            faults = [*faults, Fault("silent change", "a sum of another form, or not one of honest numbers")]
    return _faults(roster, faults)


@kind
def reply_scores(rng: Random, folder: Path) -> list[Fault]:
    setup = _setup(rng.randrange(len(METHODS)))
    server, _ = setup.start()
    replies: dict[int, RecordDict | str] = {}
    for e in range(E):
        scores: dict[str, Any] = {"loss": 0.5, "acc": 0.5, "label": [0.5, 0.5]}
        if e == 0:
            for _ in range(rng.randrange(1, 3)):
                scores[rng.choice(("loss", "acc", "label", "x"))] = _number(rng)
            if rng.random() < 0.2:
                scores.pop(rng.choice(sorted(scores)))
        record = rng.choice((MetricRecord(scores), MetricRecord(scores), ConfigRecord({"loss": "low"})))
        replies[e] = RecordDict({rng.choice(("scores", "scores", "scores", "score")): record})
    roster = _roster(setup, replies)
    result, faults = guarded(lambda: Exchange(roster, setup.task).evaluate(server, 1))
    if result is not None:
        scores, pi = result
        known = [e for e in range(E) if e not in scores.dropped]
        if not torch.isfinite(scores.loss[known]).all() or (pi is not None and not torch.isfinite(pi[known]).all()):
            faults = [*faults, Fault("silent change", "a score that is not finite")]
    return _faults(roster, faults)


@kind
def reply_hello(rng: Random, folder: Path) -> list[Fault]:
    setup = _setup(0)
    hello: dict[str, Any] = {"agent": 0, "n": 2, "job": run_signature(setup.algorithm, setup.settings)}
    hello |= {"classes": CLASSES, "columns": ""}
    for _ in range(rng.randrange(1, 3)):
        text = rng.choice(damage.NASTY_TEXT).replace("\udcff", "?")
        hello[rng.choice(sorted(hello))] = rng.choice(
            (text, b"\xff", True, -1, 7, 2**62, 0.5, [1, 2], ["a"], [True])
        )
    if rng.random() < 0.2:
        hello.pop(rng.choice(sorted(hello)))
    roster = _roster(setup, {0: RecordDict({rng.choice(("hello", "hello", "x")): ConfigRecord(hello)})})
    roster.nodes = {}
    grid = SimpleNamespace(get_node_ids=lambda: [0])
    roster.grid = grid  # type: ignore[assignment]
    _, faults = guarded(lambda: roster.gather(0, {}, True, wait=0))
    if any(not isinstance(e, int) or not 0 <= e < E for e in roster.nodes):
        faults = [*faults, Fault("silent change", "an agent that is not of this run")]
    return _faults(roster, faults)
