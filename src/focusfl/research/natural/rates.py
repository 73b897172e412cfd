"""The automatic learning rate beside fixed ones: `python -m focusfl.research.natural.rates`.

On the natural federations, with all other options at their defaults: FOCUS, validation data, early stopping,
adaptation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Literal

from focusfl.algorithms import Focus
from focusfl.data.named import find_data
from focusfl.data.sets.natural import NATURAL
from focusfl.report.markdown import grid
from focusfl.run.fit import fit
from focusfl.util.errors import Diverged

Rate = float | Literal["auto"]
RATES: tuple[Rate, ...] = ("auto", 0.001, 0.003, 0.01, 0.03, 0.1)


def losses(name: str, rate: Rate, seeds: Sequence[int]) -> list[float]:
    """Return the mean test loss over the agents for each seed; infinite where training diverged."""
    found = []
    for seed in seeds:
        fed = find_data(name)(seed=seed)
        train = replace(fed.recipe.train, lr=rate)
        fed = replace(fed, recipe=replace(fed.recipe, train=train))
        try:
            found.append(float(fit(Focus(), fed, seed=seed, bayes="none", progress=False).loss.mean()))
        except Diverged:
            found.append(inf)
    return found


def line(name: str, seeds: Sequence[int]) -> list[str]:
    """Return the row of one data set: the mean loss with each rate, and "auto" against the best fixed one."""
    each = {rate: losses(name, rate, seeds) for rate in RATES}
    means = {rate: fmean(values) for rate, values in each.items()}
    best = min((rate for rate in RATES if rate != "auto"), key=lambda rate: means[rate])
    gaps = [a - b for a, b in zip(each["auto"], each[best], strict=True)]
    error = stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else float("nan")
    relative = f"{means['auto'] / means[best] - 1:+.1%}"
    return [name, *(f"{mean:.4g}" for mean in means.values()), relative, f"{fmean(gaps):+.4f} ± {error:.4f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m focusfl.research.natural.rates", description=__doc__)
    parser.add_argument("--data", default=",".join(NATURAL), help="data sets, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default: 5, a quarter of an hour)")
    asked = parser.parse_args()
    lines = [line(name, range(asked.seeds)) for name in asked.data.split(",")]
    print(grid(["data", *map(str, RATES), "auto against the best fixed rate", "difference"], lines))


if __name__ == "__main__":
    main()
