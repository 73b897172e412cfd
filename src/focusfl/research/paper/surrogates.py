"""FAA of stored runs with other best losses than ours: `focusfl reproduce surrogates-mnist`.

The paper does not say how it found each agent's best loss (docs/decisions/09). Two ways that are not ours:

N epochs         surrogates trained for N epochs in small batches, nearer to the best loss: then an excess risk also
                 contains what better training would gain
other test data  our surrogates, on test data drawn again from the agent's cluster instead of the agent's own: then
                 an excess risk also contains the noise of two draws. A median over draws, with 5 and 95 %
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from focusfl.algorithms import title
from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.fairness.metrics import excess_risk, faa
from focusfl.report.rows import Row
from focusfl.report.section import Measurement
from focusfl.research.paper.cells import Cell
from focusfl.research.paper.reproduction import Part, Reproduction, load
from focusfl.research.paper.stored_results import cells_of, find_row
from focusfl.run.best_loss import Surrogates
from focusfl.run.loop import Round
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

Watch = Callable[[int, int], None]  # called with the steps done and all steps
DRAWS = 1000  # of other test data


@dataclass(frozen=True)
class OtherBestLosses:
    """Best losses of the agents of one setting, in two other ways."""

    trained: list[Tensor]  # [E] of surrogates trained for N epochs, for each N
    drawn: Tensor  # [DRAWS, E] of our surrogates, on other test data


def against_other_best_losses(
    one: Reproduction, stored: dict[str, Row], cells: Path, precision: str, watch: Watch = lambda done, total: None
) -> list[Measurement]:
    """Compute FAA with other best losses for the first seed of each run of some tables.

    Args:
        one: Its options say which tables (`tables`) and how to train surrogates (`epochs`, `batch`, `lr`).
        stored: Rows that were computed before, by the key of their cell.
        cells: The folder of the cells.
        precision: Of the training.
        watch: Called after every step.

    Returns:
        One line per method, setting and table.
    """
    epochs, train = one.options["epochs"], Train(lr=one.options["lr"], epochs=1, batch=one.options["batch"])
    runs = list(_runs(one, stored, cells))
    if not runs:
        name = one.options["tables"][0]
        raise InputError(f"{one.name}: none of its tables is computed: run focusfl reproduce {name} first")
    parts = {(_setting(part), cell.seed): part for _, part, cell, _ in runs}
    total, done = sum((part.experiment.settings.rounds or 1) + sum(epochs) for part in parts.values()), 0

    def step(_: Round) -> None:
        nonlocal done
        done += 1
        watch(done, total)

    surrogates = Surrogates(cells / "surrogates")
    best = {
        (setting, seed): other_best_losses(_setup(part, seed, precision), train, epochs, surrogates, step)
        for (setting, seed), part in parts.items()
    }
    return [
        {"table": table, "setting": part.name or "-", "method": title(cell.method), "FAA": row["faa"]}
        | faa_columns(torch.tensor(row["loss"]), best[_setting(part), cell.seed], epochs)
        | {"FAA, paper": part.expect.get(cell.method, {}).get("faa")}
        for table, part, cell, row in runs
    ]


def other_best_losses(
    setup: Setup, train: Train, epochs: list[int], surrogates: Surrogates, watch: Callable[[Round], None]
) -> OtherBestLosses:
    """Train the surrogates that are not there yet, and draw other test data."""
    fed, best = setup.fed, surrogates.best(setup.changed(bayes="true"), watch=watch)
    if best.examples is None:
        why = "stored by an older version, without the losses of single examples"
        raise InputError(f"{surrogates.folder}: {why}; delete the folder and run this again")
    more = [setup.changed(bayes="true", train=train, rounds=N) for N in epochs]
    trained = [surrogates.best(s, watch=watch).loss for s in more]
    return OtherBestLosses(trained, resampled_means(best.examples, fed))


def resampled_means(losses: Tensor, fed: Federation, draws: int = DRAWS) -> Tensor:
    """Draw other test data for each agent, with replacement, from the test data of its cluster.

    Args:
        losses: [N] on each test example, agent after agent.
        fed: The agents. Their true clusters are known.
        draws: How often.

    Returns:
        [draws, E] means of as many losses as the agent has test examples.
    """
    assert fed.clusters is not None
    rng, sizes = torch.Generator().manual_seed(0), fed.testing.sizes
    whose = fed.clusters.repeat_interleave(sizes)
    means = []
    for c, n in zip(fed.clusters.tolist(), sizes.tolist(), strict=True):
        pool = losses[whose == c]
        means.append(pool[torch.randint(len(pool), (draws, n), generator=rng)].mean(1))
    return torch.stack(means, 1)


def faa_columns(loss: Tensor, best: OtherBestLosses, epochs: list[int]) -> Measurement:
    """Return FAA of the agents' losses [E] with each of the other best losses, by heading."""
    excess = excess_risk(loss, best.drawn)
    low, middle, high = (excess.amax(1) - excess.amin(1)).quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
    trained = {f"{N} epochs": faa(excess_risk(loss, b)) for N, b in zip(epochs, best.trained, strict=True)}
    return trained | {"other test data": middle, "5 %": low, "95 %": high}


def _runs(one: Reproduction, stored: dict[str, Row], cells: Path) -> Iterator[tuple[str, Part, Cell, Row]]:
    """The first seed that is computed, of every method in every setting. Tables share runs: each comes once."""
    seen = set()
    for name in one.options["tables"]:
        for part, cell in cells_of(load(name, one.scale)):
            row, what = find_row(cell, stored, cells), (_setting(part), repr(cell.algorithm))
            if row is not None and what not in seen:
                seen.add(what)
                yield name, part, cell, row


def _setting(part: Part) -> str:
    """Return everything but the seed that best losses depend on."""
    e = part.experiment
    return repr((e.data, e.shift, e.train, e.settings.rounds))


def _setup(part: Part, seed: int, precision: str) -> Setup:
    """The set-up of any method: surrogates are the same for all."""
    experiment = part.experiment.model_copy(update={"algorithms": ["fedavg"]}).with_settings(precision=precision)
    setup = experiment.setups(seed)["fedavg"]
    assert isinstance(setup, Setup)
    return setup
