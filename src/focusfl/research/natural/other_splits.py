"""FOCUS beside the linear models on other splits of heart: `python -m focusfl.research.natural.other_splits`.

heart has FLamby's split, which is fixed, so that its seeds share one set of test patients: their luck is in every
number. Here the patients of each hospital are divided at random, into parts of the same sizes.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

import numpy as np

from focusfl.algorithms import FedAvg, Focus
from focusfl.data.federation import Federation
from focusfl.data.sets import natural
from focusfl.report.markdown import grid
from focusfl.research.natural import baselines
from focusfl.research.natural.report import mean_and_error
from focusfl.run.fit import fit

REFERENCE = "Linear model, pooled"
Measure = Callable[[Federation, int], float]
MEASURED: dict[str, Measure] = {
    "FOCUS": lambda fed, seed: float(fit(Focus(), fed, seed=seed, bayes="none").loss.mean()),
    "FedAvg": lambda fed, seed: float(fit(FedAvg(), fed, seed=seed, bayes="none").loss.mean()),
    REFERENCE: lambda fed, _: fmean(baselines.pooled(fed).loss),
    "Linear model, own": lambda fed, _: fmean(baselines.own(fed).loss),
}


def divide(source: Path, into: Path, seed: int) -> None:
    """Write the agents of `source` into another folder, with other rows in train.csv and test.csv.

    Args:
        source: A folder with AGENT/train.csv and AGENT/test.csv.
        into: The new folder.
        seed: Decides which rows are test rows; their number stays.
    """
    for e, place in enumerate(sorted(each for each in source.iterdir() if each.is_dir())):
        files = [list(csv.reader((place / f"{half}.csv").open(newline=""))) for half in ("train", "test")]
        header, rows = files[0][0], [row for each in files for row in each[1:]]
        order = np.random.default_rng([seed, e]).permutation(len(rows))
        at = len(files[0]) - 1
        (into / place.name).mkdir(parents=True)
        for half, chosen in (("train", order[:at]), ("test", order[at:])):
            with (into / place.name / f"{half}.csv").open("w", newline="") as handle:
                csv.writer(handle).writerows([header, *(rows[i] for i in chosen)])


def measure(seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return the mean test loss over the hospitals of each method, for each seed."""
    losses: dict[str, list[float]] = {name: [] for name in MEASURED}
    for seed in seeds:
        with TemporaryDirectory() as folder:
            divide(natural.find("heart"), Path(folder) / "heart", seed)
            fed = natural.heart(path=folder, check=False)
        for name, loss in MEASURED.items():
            losses[name].append(loss(fed, seed))
    return losses


def table(losses: dict[str, list[float]]) -> str:
    """Return the means with their standard errors, and the mean differences from REFERENCE, as Markdown."""
    lines = []
    for name, values in losses.items():
        gaps = [a - b for a, b in zip(values, losses[REFERENCE], strict=True)]
        error = stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else float("nan")
        gap = "" if name == REFERENCE else f"{fmean(gaps):+.4f} ± {error:.4f}"
        lines.append([name, mean_and_error(values), gap])
    return grid(["method", "mean loss", f"minus {REFERENCE}"], lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m focusfl.research.natural.other_splits", description=__doc__)
    parser.add_argument("--splits", type=int, default=20, help="how many splits (default: 20, about two minutes)")
    print(table(measure(range(parser.parse_args().splits))))


if __name__ == "__main__":
    main()
