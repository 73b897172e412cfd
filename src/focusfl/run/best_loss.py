"""Each agent's best possible loss, min L_e of eq. 3: known exactly, or the loss of a surrogate.

A surrogate is the model that one agent would train if it held all the data of its cluster. It has the same network,
training options and number of rounds, and is evaluated on the test data of each member. With K full-batch steps per
round it takes T K full-batch steps; with epochs, it takes epochs over the pooled data.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from focusfl.algorithms.local import Local
from focusfl.core.tree import take
from focusfl.data.federation import Federation
from focusfl.fairness.examples import read
from focusfl.run import identity
from focusfl.run.loop import Round, Stop, never, run
from focusfl.run.setup import Setup
from focusfl.util import files, sealed
from focusfl.util.errors import Diverged, InputError, LockedError

Watch = Callable[[Round], None]


class BestLoss(NamedTuple):
    """The best loss of each agent, and where it comes from.

    Attributes:
        loss: The best losses, [E].
        kind: "exact" if they are known; otherwise what a surrogate was trained for: each "true" cluster, each
            "learned" cluster, or each "agent". "none" if they are not measured.
        examples: A surrogate's loss on each test example, agent after agent, [N].
    """

    loss: Tensor
    kind: str
    examples: Tensor | None = None


def resolve(kind: str, fed: Federation) -> str:
    """Return the kind of best loss that "auto" means on this data; other kinds are returned as they are.

    Raises:
        InputError: If the data does not allow that kind.
    """
    if kind == "exact" and fed.bayes is None:
        raise InputError(f"bayes = 'exact', but the best loss on {fed.name!r} is not known; use 'auto'")
    if kind == "true" and fed.clusters is None:
        raise InputError(f"bayes = 'true', but the true clusters of {fed.name!r} are not known; use 'agent'")
    if kind != "auto":
        return kind
    return "exact" if fed.bayes is not None else "true" if fed.clusters is not None else "agent"


class Surrogates:
    """Trains surrogates and caches them by content: methods compared on the same data share one.

    Args:
        folder: Where they are stored; None keeps them in memory.
        wait: Wait for another process that is training one in the same folder; otherwise `best` raises LockedError.
    """

    def __init__(self, folder: Path | None = None, wait: bool = True) -> None:
        self.folder, self.wait = folder, wait
        self._known: dict[str, tuple[Tensor, Tensor | None]] = {}

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
        groups = {"true": fed.clusters, "learned": learned}.get(kind)
        groups = torch.unique(torch.arange(fed.E) if groups is None else groups, return_inverse=True)[1]
        # A surrogate belongs to no single agent, so it is trained here and not on a Flower node.
        engine = "auto" if setup.settings.engine == "flower" else setup.settings.engine
        alone = setup.changed(Local(), fraction=1.0, joins={}, leaves={}, engine=engine, metrics=(), patience=None)
        key = identity.text_digest(f"{alone.fingerprint}{groups.tolist()}")[:24]
        if key not in self._known:
            self._known[key] = self._load_or_train(key, alone, groups, watch, stop)
        return BestLoss(self._known[key][0], kind, self._known[key][1])

    def _load_or_train(
        self, key: str, alone: Setup, groups: Tensor, watch: Watch, stop: Stop
    ) -> tuple[Tensor, Tensor | None]:
        """Read the surrogates' losses from the folder; one process at a time trains those that are missing."""
        if self.folder is None:
            return self._train(alone, groups, watch, stop, None)
        path = files.make_folder(self.folder) / key
        result, examples, lock = (path.with_suffix(end) for end in (".json", ".safetensors", ".lock"))
        with files.lock(lock, wait=math.inf if self.wait else 0) as locked:
            if not locked and not result.exists():
                raise LockedError(lock)
            if not result.exists():
                loss, each = self._train(alone, groups, watch, stop, files.make_folder(path))
                sealed.write_tensors(examples, {"loss": each})
                sealed.write_json(result, {"clusters": groups.tolist(), "loss": loss.tolist()})
            if locked:  # a run that was killed after it wrote its result left the folder
                shutil.rmtree(path, ignore_errors=True)
        stored = read(examples, "loss")  # older versions stored none
        loss = _read_losses(result, groups)
        return loss, None if stored is None else stored[0]

    def _train(
        self, alone: Setup, groups: Tensor, watch: Watch, stop: Stop, folder: Path | None
    ) -> tuple[Tensor, Tensor]:
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


def _read_losses(path: Path, groups: Tensor) -> Tensor:
    """Read the best losses of the agents in these groups."""
    stored = sealed.read_json(path)
    losses = stored.get("loss") if isinstance(stored, dict) else None
    if (
        not isinstance(losses, list)
        or len(losses) != len(groups)
        or not all(isinstance(v, float) and math.isfinite(v) for v in losses)
        or stored.get("clusters", groups.tolist()) != groups.tolist()
    ):
        raise InputError(f"{path}: expected {len(groups)} agents' best losses: delete it to compute them again")
    return torch.tensor(losses)
