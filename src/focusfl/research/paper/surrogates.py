"""FAA of kept runs against other best losses than ours: `focusfl reproduce surrogates-mnist`.

How the paper found each agent's best loss it does not say (docs/decisions/09). Two ways that are not ours:

N epochs         surrogates trained for N epochs in small batches, nearer to the best: an excess risk then holds
                 what better training would gain, too
other test data  our surrogates, on test data drawn anew from the agent's cluster instead of the agent's own: an
                 excess risk then holds the luck of two draws, too. A median over draws, with 5 and 95 %
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.fairness.metrics import excess_risk, faa
from focusfl.report.tables import title
from focusfl.research.paper.cells import Cell
from focusfl.research.paper.keeping import cells_of, row_of
from focusfl.research.paper.reproduction import Part, Reproduction, load
from focusfl.run.best_loss import Surrogates
from focusfl.run.loop import Round
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

Row = dict[str, Any]
Watch = Callable[[int, int], None]
DRAWS = 1000


@dataclass(frozen=True)
class Others:
    """Best losses of the agents of one setting."""

    trained: list[Tensor]  # [E] of surrogates trained for N epochs, for each N
    drawn: Tensor  # [DRAWS, E] of ours, on other test data


def against_others(
    one: Reproduction, known: dict[str, Row], cells: Path, precision: str, watch: Watch = lambda done, total: None
) -> list[Row]:
    """A line for each run of the tables that `tables` names, where there is one: its first seed."""
    tables, epochs = one.options["tables"], one.options["epochs"]
    train = Train(lr=one.options["lr"], epochs=1, batch=one.options["batch"])
    runs = list(_runs(one, known, cells))
    if not runs:
        raise InputError(f"{one.name}: none of its tables has been computed: focusfl reproduce {tables[0]} first")
    parts = {(_setting(part), cell.seed): part for _, part, cell, _ in runs}
    total, done = sum((part.experiment.settings.rounds or 1) + sum(epochs) for part in parts.values()), 0

    def step(_: Round) -> None:
        nonlocal done
        done += 1
        watch(done, total)

    surrogates = Surrogates(cells / "surrogates")
    best = {
        (setting, seed): others(_setup(part, seed, precision), train, epochs, surrogates, step)
        for (setting, seed), part in parts.items()
    }
    return [
        {"table": table, "setting": part.name or "-", "method": title(cell.method), "FAA": row["faa"]}
        | compared(torch.tensor(row["loss"]), best[_setting(part), cell.seed], epochs)
        | {"FAA, paper": part.expect.get(cell.method, {}).get("faa")}
        for table, part, cell, row in runs
    ]


def others(
    setup: Setup, train: Train, epochs: list[int], surrogates: Surrogates, watch: Callable[[Round], None]
) -> Others:
    """Trains what is not there yet."""
    fed, best = setup.fed, surrogates.best(setup.changed(bayes="true"), watch=watch)
    if best.examples is None:
        why = "kept by an older version, without the losses of single examples"
        raise InputError(f"{surrogates.folder}: {why}; delete the folder and run this again")
    more = [setup.changed(bayes="true", train=train, rounds=N) for N in epochs]
    return Others([surrogates.best(s, watch=watch).loss for s in more], drawn_anew(best.examples, fed))


def drawn_anew(losses: Tensor, fed: Federation, draws: int = DRAWS) -> Tensor:
    """Means of as many test losses as agent e has, drawn with replacement from those of its cluster. [draws, E]

    losses  [N] on each test example, agent after agent
    """
    assert fed.clusters is not None
    rng, sizes = torch.Generator().manual_seed(0), fed.testing.sizes
    whose = fed.clusters.repeat_interleave(sizes)
    means = []
    for c, n in zip(fed.clusters.tolist(), sizes.tolist(), strict=True):
        pool = losses[whose == c]
        means.append(pool[torch.randint(len(pool), (draws, n), generator=rng)].mean(1))
    return torch.stack(means, 1)


def compared(loss: Tensor, best: Others, epochs: list[int]) -> Row:
    """FAA of the agents' losses [E] against them."""
    excess = excess_risk(loss, best.drawn)
    low, middle, high = (excess.amax(1) - excess.amin(1)).quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
    trained = {f"{N} epochs": faa(excess_risk(loss, b)) for N, b in zip(epochs, best.trained, strict=True)}
    return trained | {"other test data": middle, "5 %": low, "95 %": high}


def _runs(one: Reproduction, known: dict[str, Row], cells: Path) -> Iterator[tuple[str, Part, Cell, Row]]:
    """Of every method in every setting its first seed that has been computed; tables share runs: each once."""
    seen = set()
    for name in one.options["tables"]:
        for part, cell in cells_of(load(name, one.scale)):
            row, what = row_of(cell, known, cells), (_setting(part), repr(cell.algorithm))
            if row is not None and what not in seen:
                seen.add(what)
                yield name, part, cell, row


def _setting(part: Part) -> str:
    """What best losses depend on, beside the seed."""
    e = part.experiment
    return repr((e.data, e.shift, e.train, e.settings.rounds))


def _setup(part: Part, seed: int, precision: str) -> Setup:
    """Of any method: a surrogate is the same for all."""
    experiment = part.experiment.model_copy(update={"algorithms": ["fedavg"]}).with_settings(precision=precision)
    setup = experiment.setups(seed)["fedavg"]
    assert isinstance(setup, Setup)
    return setup
