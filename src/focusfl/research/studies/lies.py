"""Agents that lie about what they send, and a server that checks it as a deployment does (engines/audit.py).

An upload holds models (nested dicts of tensors), and numbers beside them: weights, counts, losses. A lie changes
them after honest training, as an agent could that does not run this code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from focusfl.core import Algorithm, State, Upload
from focusfl.core.tree import RunningSum, put, take, tree_map
from focusfl.engines import Replies, audit, plan
from focusfl.engines.one_agent import LocalAgent
from focusfl.engines.serial import Serial

Lie = Callable[[Upload], Upload]
MODEL_FACTOR = -3.0  # liars send their model times this, unless the lie is about its size


def claim(weight: Callable[[Tensor], Tensor]) -> Lie:
    """Return the lie that sends a wrong model and claims these weights for it instead of the true ones."""

    def lie(upload: Upload) -> Upload:
        honest = _numbers(upload.add)
        add: State = {k: weight(v) for k, v in honest.items()}
        first = next(iter(honest), None)  # the models of a sum are multiplied by their weight
        by = 1.0 if first is None or not honest[first].sum() else float(add[first].sum() / honest[first].sum())
        for k, v in upload.add.items():
            if isinstance(v, dict):
                add[k] = _times(v, MODEL_FACTOR * by)
        each = {
            k: _times(v, MODEL_FACTOR) if isinstance(v, dict) else weight(v) if k in WEIGHTS else v
            for k, v in upload.each.items()
        }
        return Upload(add, each)

    return lie


def report_loss(upload: Upload, factor: float = 1e9) -> Upload:
    """Return the upload of an agent that sends a wrong model and claims a loss of 1e9 times its own."""
    wrong = claim(lambda v: v)(upload)
    each = {k: factor * v if k == "loss" else v for k, v in wrong.each.items()}
    scaled = {k: _times(v, factor) if k in ("Delta", "h") else v for k, v in wrong.add.items()}
    return Upload(scaled, each)


def overflow(upload: Upload) -> Upload:
    """Return the upload with one number of 1e30 in each tensor of its models."""

    def one(v: Tensor) -> Tensor:
        v = v.clone()
        if v.is_floating_point() and v.numel():
            v.view(-1)[0] = 1e30
        return v

    changed = [{k: tree_map(one, v) if isinstance(v, dict) else v for k, v in part.items()} for part in upload]
    return Upload(*changed)


WEIGHTS = ("n", "weight")  # the names of weights that the server sees agent by agent
LIES: dict[str, Lie] = {
    "model-x-3": claim(lambda v: v),
    "share-6": claim(lambda v: 6 * v),
    "share-1e9": claim(lambda v: 1e9 * v),
    "share-negative": claim(lambda v: -5 * v),
    "share-all": claim(lambda v: torch.ones_like(v) * v.sum()),
    "loss-1e9": report_loss,
    "upload-1e30": overflow,
}


class LyingAgents(Serial):
    """The serial engine with agents that lie, and with or without the checks of a server.

    Args:
        *engine: The arguments of the engine.
        lie: What the liars do to their uploads.
        liars: The agents that lie.
        checked: Whether uploads are checked.
    """

    def __init__(self, *engine: Any, lie: Lie, liars: Collection[int], checked: bool = True) -> None:
        super().__init__(*engine)
        self.lie, self.liars, self.checked = lie, liars, checked
        self.refused: dict[int, int] = {}  # how often each agent's upload was refused

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Replies:
        lr = self.train.lr_at(t, self.rounds)
        uploads, new = dict[int, Upload](), dict[int, State]()

        def view(e: int) -> State:
            return algorithm.downlink(server, torch.tensor(e))

        for e in cohort.tolist():
            agent = LocalAgent(self.task, self.fed.training.of(e), self.train, lr, self.seed, t, e)
            new[e], upload = algorithm.local(view(e), take(states, e), agent)
            uploads[e] = self.lie(upload) if e in self.liars else upload
        sizes = dict(enumerate(self.fed.training.sizes.tolist()))
        trainable = tuple(self.task.parameters)
        dropped = audit.suspects(algorithm, uploads, view, sizes, trainable) if self.checked else {}
        total, answered = RunningSum(), [e for e in uploads if e not in dropped]
        for e in answered:
            put(states, e, new[e])
            total.add(uploads[e].add)
        self.refused |= {e: self.refused.get(e, 0) + 1 for e in dropped}
        each = tree_map(lambda *vs: torch.stack(vs), *(uploads[e].each for e in answered))
        return Replies(total.result(), each, cohort[[e in answered for e in cohort.tolist()]], dropped)


def _numbers(part: State) -> State:
    return {k: v for k, v in part.items() if not isinstance(v, dict)}


def _times(value: Any, factor: float) -> Any:
    return tree_map(lambda v: factor * v, value) if isinstance(value, dict) else factor * value
