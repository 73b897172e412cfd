"""Each agent's best possible loss, min L_e of eq. 3: known exactly, or the loss of a surrogate.

A surrogate is what one agent would learn who held all the data of its cluster: the same network, training
options and rounds, evaluated on each member's own test data. With K full-batch steps a round it takes T K full
steps; with epochs, epochs over the pooled data.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from focusfl.algorithms.local import Local
from focusfl.core.tree import take
from focusfl.data.federation import Federation
from focusfl.fairness.examples import read
from focusfl.run.presence import EVERYBODY
from focusfl.run.training import Round, Setup, evaluate, example_losses, run
from focusfl.util import files
from focusfl.util.errors import Diverged, InputError, LockedError, nearest

KINDS = ("auto", "exact", "true", "learned", "agent")
Watch = Callable[[Round], None]
Losses = tuple[Tensor, Tensor | None]  # of each agent, and of each test example where these were kept


class Bayes(NamedTuple):
    """kind: exact | true | learned | agent: known, or a surrogate per true cluster, learned cluster or agent."""

    loss: Tensor  # [E]
    kind: str
    examples: Tensor | None = None  # [N] a surrogate's loss on each test example, agent after agent


def resolve(kind: str, fed: Federation) -> str:
    """What `auto` means on this data; an InputError where the data cannot give what is asked for."""
    if kind not in KINDS:
        raise InputError(f"bayes = {kind!r}: {nearest(kind, KINDS)}")
    if kind == "exact" and fed.bayes is None:
        raise InputError(f"bayes = 'exact', but the best loss on {fed.name!r} is not known; use 'auto'")
    if kind == "true" and fed.clusters is None:
        raise InputError(f"bayes = 'true', but the true clusters of {fed.name!r} are not known; use 'agent'")
    if kind != "auto":
        return kind
    return "exact" if fed.bayes is not None else "true" if fed.clusters is not None else "agent"


class Surrogates:
    """Trains surrogates and keeps them by content: methods compared on the same data share one.

    wait  for another process that is training one in the same folder; else `best` raises LockedError
    """

    def __init__(self, folder: Path | None = None, wait: bool = True) -> None:
        self.folder, self.wait = folder, wait
        self._known: dict[str, Losses] = {}

    def best(
        self,
        setup: Setup,
        kind: str = "auto",
        learned: Tensor | None = None,
        watch: Watch = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Bayes:
        """The best loss of each agent; `learned`, [E], are the clusters a method found.

        auto: exact where known, else per true cluster where those are known, else per agent (the one choice
        left that is the same for every method).
        """
        fed = setup.fed
        kind = resolve(kind, fed)
        if fed.bayes is not None and kind == "exact":
            return Bayes(fed.bayes, kind)
        groups = {"true": fed.clusters, "learned": learned}.get(kind)
        groups = torch.arange(fed.E) if groups is None else groups
        loss, each = self._surrogate(setup, groups, watch, stop)
        return Bayes(loss, kind, each)

    def _surrogate(self, setup: Setup, groups: Tensor, watch: Watch, stop: Callable[[], bool]) -> Losses:
        groups = torch.unique(groups, return_inverse=True)[1]
        here = "auto" if setup.engine == "flower" else setup.engine  # a surrogate is nobody's node
        alone = replace(setup, algorithm=Local(), fraction=1.0, presence=EVERYBODY, engine=here)
        key = hashlib.sha256(f"{alone.fingerprint}{groups.tolist()}".encode()).hexdigest()[:24]
        if key not in self._known:
            train = partial(self._train, alone, groups, watch, stop)
            self._known[key] = train(None) if self.folder is None else self._kept(self.folder / key, groups, train)
        return self._known[key]

    def _kept(self, path: Path, groups: Tensor, train: Callable[[Path], tuple[Tensor, Tensor]]) -> Losses:
        """From the file; where there is none, trained, by one process at a time, with checkpoints meanwhile."""
        files.make_folder(path.parent)
        kept, examples = path.with_suffix(".json"), path.with_suffix(".safetensors")
        lock = path.with_suffix(".lock")
        with files.lock(lock, wait=math.inf if self.wait else 0) as mine:
            if not mine and not kept.exists():
                raise LockedError(lock)
            if not kept.exists():
                loss, fresh = train(files.make_folder(path))
                files.write(examples, lambda temporary: save_file({"loss": fresh}, temporary))
                files.write_json(kept, {"clusters": groups.tolist(), "loss": loss.tolist()})
                shutil.rmtree(path, ignore_errors=True)
        each = read(examples, "loss")  # older versions kept none
        return torch.tensor(files.read_json(kept)["loss"]), None if each is None else each[0]

    def _train(
        self, alone: Setup, groups: Tensor, watch: Watch, stop: Callable[[], bool], folder: Path | None
    ) -> tuple[Tensor, Tensor]:
        pooled = replace(alone, fed=alone.fed.pool(groups))
        for done in run(pooled, folder, resume=folder is not None, eval_every=0, stop=stop):
            watch(done)
        states = take(done.states, groups)
        loss = evaluate(alone, done.server, states).loss
        if not torch.isfinite(loss).all():
            raise Diverged(f"the surrogate's loss is not finite: try a smaller lr than train.lr = {alone.train.lr}")
        return loss, example_losses(alone, done.server, states)
