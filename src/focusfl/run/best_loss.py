"""Each agent's best possible loss, min L_e of eq. 3: known exactly, the loss of a surrogate, or validated.

Validated best losses are those of the best of several models for each agent (run/candidates.py).

A surrogate is the model that one agent would train if it held all the data of its cluster. It has the same network,
training options and number of rounds, and is evaluated on the test data of each member. With K full-batch steps per
round it takes T K full-batch steps; with epochs, it takes epochs over the pooled data.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from focusfl.algorithms.local import Local
from focusfl.core.tree import take
from focusfl.data.federation import Federation
from focusfl.fairness.best_loss import Limits
from focusfl.fairness.examples import read
from focusfl.run import candidates, identity
from focusfl.run.candidates import Plan, Validated, Watch
from focusfl.run.folds import FOLDS
from focusfl.run.loop import Round, Stop, never, run
from focusfl.run.setup import Setup
from focusfl.util import files, sealed
from focusfl.util.errors import Diverged, InputError, LockedError

T = TypeVar("T")


class BestLoss(NamedTuple):
    """The best loss of each agent, and where it comes from.

    Attributes:
        loss: The best losses, [E].
        kind: "exact" if they are known; otherwise what a surrogate was trained for: each "true" cluster, each
            "learned" cluster, or each "agent"; "validated" if they are those of the best of several models. "none"
            if they are not measured.
        examples: A surrogate's loss on each test example, agent after agent, [N].
        alone: If validated: the loss of each test example under a network that its agent trained alone, [N].
        chosen: If validated: the model of each agent, by name.
        limits: If validated: the interval of each best loss, where it is known.
    """

    loss: Tensor
    kind: str
    examples: Tensor | None = None
    alone: Tensor | None = None
    chosen: list[str] | None = None
    limits: Limits | None = None


def resolve(kind: str, fed: Federation) -> str:
    """Return the kind of best loss that "auto" means on this data; other kinds are returned as they are.

    Raises:
        InputError: If the data does not allow that kind.
    """
    if kind == "exact" and fed.bayes is None:
        raise InputError(f"bayes = 'exact', but the best loss on {fed.name!r} is not known; use 'auto'")
    if kind == "true" and fed.clusters is None:
        raise InputError(f"bayes = 'true', but the true clusters of {fed.name!r} are not known; use 'agent'")
    enough = int(fed.all_rows.sizes.max()) >= FOLDS
    if kind == "validated" and not enough:
        what = f"no agent of {fed.name!r} has {FOLDS} examples besides its test data"
        raise InputError(f"bayes = 'validated', but {what}; use 'agent'")
    if kind != "auto":
        return kind
    known = {"exact": fed.bayes is not None, "true": fed.clusters is not None, "validated": enough, "agent": True}
    return next(name for name, is_known in known.items() if is_known)


class Surrogates:
    """Trains surrogates and caches them by content: methods compared on the same data share one.

    Args:
        folder: Where they are stored; None keeps them in memory.
        wait: Wait for another process that is training one in the same folder; otherwise `best` raises LockedError.
    """

    def __init__(self, folder: Path | None = None, wait: bool = True) -> None:
        self.folder, self.wait = folder, wait
        self._known: dict[str, Any] = {}

    def best(
        self, setup: Setup, learned: Tensor | None = None, watch: Watch = lambda _: None, stop: Stop = never
    ) -> BestLoss:
        """Return the best loss of each agent, of the kind that the setting `bayes` names.

        Args:
            setup: The run whose best losses are wanted.
            learned: The clusters that a method found, [E].
            watch: Called after every round of a surrogate.
            stop: See `loop.run`.
        """
        fed = setup.fed
        kind = resolve(setup.settings.bayes, fed)
        if fed.bayes is not None and kind == "exact":
            return BestLoss(fed.bayes, kind)
        if kind == "none":
            return BestLoss(torch.zeros(fed.E), kind)
        if kind == "validated":
            return self._validated(setup, watch, stop)
        groups = {"true": fed.clusters, "learned": learned}.get(kind)
        groups = torch.unique(torch.arange(fed.E) if groups is None else groups, return_inverse=True)[1]
        # A surrogate belongs to no single agent, so it is trained here and not on a Flower node.
        engine = "auto" if setup.settings.engine == "flower" else setup.settings.engine
        alone = setup.changed(Local(), fraction=1.0, joins={}, leaves={}, engine=engine, metrics=(), patience=None)
        loss, each = self._once(
            f"{alone.fingerprint}{groups.tolist()}",
            lambda path: _read_surrogates(path, groups),
            lambda path, found: _write_surrogates(path, groups, *found),
            lambda at: self._train(alone, groups, watch, stop, at),
        )
        return BestLoss(loss, kind, each)

    def _validated(self, setup: Setup, watch: Watch, stop: Stop) -> BestLoss:
        plan, T = Plan.of(setup), setup.settings.T

        def shown(done: Round) -> None:  # candidates may train for more rounds than the run
            watch(replace(done, t=-(-done.t * T // plan.setup.settings.T)))

        def train(folder: Path | None) -> Validated:
            return candidates.validated(plan, folder, shown, stop)

        found = self._once(plan.identity, _read_validated, _write_validated, train)
        return BestLoss(found.loss, "validated", found.examples, found.alone, found.chosen, found.limits)

    def _once(
        self,
        content: str,
        load: Callable[[Path], T],
        store: Callable[[Path, T], None],
        train: Callable[[Path | None], T],
    ) -> T:
        """Return what was trained before for this content, or train it; one process at a time does.

        Args:
            content: All that the result depends on.
            load: Reads the result, given the path without its ending.
            store: Writes it.
            train: Trains, with checkpoints in the folder that it gets.
        """
        key = identity.text_digest(content)[:24]
        if key not in self._known:
            self._known[key] = self._load_or_train(key, load, store, train)
        found: T = self._known[key]
        return found

    def _load_or_train(
        self,
        key: str,
        load: Callable[[Path], T],
        store: Callable[[Path, T], None],
        train: Callable[[Path | None], T],
    ) -> T:
        if self.folder is None:
            return train(None)
        path = files.make_folder(self.folder) / key
        result, lock = path.with_suffix(".json"), path.with_suffix(".lock")
        with files.lock(lock, wait=math.inf if self.wait else 0) as locked:
            if not locked and not result.exists():
                raise LockedError(lock)
            if not result.exists():
                store(path, train(files.make_folder(path)))
            if locked:  # a run that was killed after it wrote its result left the folder
                shutil.rmtree(path, ignore_errors=True)
        return load(path)

    def _train(
        self, alone: Setup, groups: Tensor, watch: Watch, stop: Stop, folder: Path | None
    ) -> tuple[Tensor, Tensor | None]:
        pooled = alone.changed(fed=alone.fed.pool(groups))
        for done in run(pooled, folder, resume=folder is not None, eval_every=0, stop=stop):
            watch(done)
        with alone.engine.threads():
            scores = alone.engine.evaluate(alone.algorithm, done.server, take(done.states, groups))
        if not torch.isfinite(scores.loss).all():
            lr = alone.settings.local.lr
            raise Diverged(f"the surrogate's loss is not finite: try a smaller lr than train.lr = {lr}")
        assert scores.examples is not None
        return scores.loss, scores.examples


def _write_surrogates(path: Path, groups: Tensor, loss: Tensor, each: Tensor | None) -> None:
    assert each is not None
    sealed.write_tensors(path.with_suffix(".safetensors"), {"loss": each})
    sealed.write_json(path.with_suffix(".json"), {"clusters": groups.tolist(), "loss": loss.tolist()})


def _read_surrogates(path: Path, groups: Tensor) -> tuple[Tensor, Tensor | None]:
    loss, _ = _read_losses(path.with_suffix(".json"), groups.tolist())
    stored = read(path.with_suffix(".safetensors"), "loss")  # older versions stored none
    return loss, None if stored is None else stored[0]


def _write_validated(path: Path, found: Validated) -> None:
    limits = {} if found.limits is None else found.limits._asdict()
    tensors = {"loss": found.examples, "alone": found.alone, **limits}
    sealed.write_tensors(path.with_suffix(".safetensors"), tensors)
    content = {"loss": found.loss.tolist(), "chosen": found.chosen, "limits": bool(limits)}
    sealed.write_json(path.with_suffix(".json"), content)


def _read_validated(path: Path) -> Validated:
    loss, stored = _read_losses(path.with_suffix(".json"))
    examples, chosen = path.with_suffix(".safetensors"), stored.get("chosen")
    tensors = read(examples, "loss", "alone")
    if tensors is None or not isinstance(chosen, list) or len(chosen) != len(loss):
        raise InputError(f"{examples}: it does not fit {path.name}.json: delete both to compute them again")
    limits = read(examples, *Limits._fields) if stored.get("limits") else None
    names = list(map(str, chosen))
    return Validated(loss, tensors[0], tensors[1], names, None if limits is None else Limits(*limits))


def _read_losses(path: Path, groups: list[int] | None = None) -> tuple[Tensor, dict[str, Any]]:
    """Read the agents' best losses, and all that is stored with them; if groups are given, of agents in these."""
    stored = sealed.read_json(path)
    losses = stored.get("loss") if isinstance(stored, dict) else None
    agents = "the" if groups is None else f"{len(groups)}"
    if (
        not isinstance(losses, list)
        or (groups is not None and (len(losses) != len(groups) or stored.get("clusters", groups) != groups))
        or not all(isinstance(v, float) and math.isfinite(v) for v in losses)
    ):
        raise InputError(f"{path}: expected {agents} agents' best losses: delete it to compute them again")
    return torch.tensor(losses), stored
