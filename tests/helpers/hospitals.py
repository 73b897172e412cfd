"""Four hospitals of two groups: in the second the labels are reversed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import focusfl as ff
from focusfl.run.result import Result

NAMES = ("aarau", "bern", "elm", "flims")


def write_hospital(path: Path, seed: int, reverse: bool = False, n: int = 60, label: str = "diagnosis") -> None:
    """Write a table of patients, who are ill if the pressure is high; in reverse, if it is low."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(["age", "pressure", *([label] if label else [])])
        for age, pressure in zip(rng.normal(60, 10, n), rng.normal(120, 15, n), strict=True):
            ill = "ill" if (pressure > 120) != reverse else "well"
            rows.writerow([round(age, 2), round(pressure, 2), *([ill] if label else [])])


def train_hospitals(folder: Path, names: tuple[str, ...] = NAMES) -> Result:
    """Write four hospitals to a folder, and train FOCUS on them, scaled."""
    folder.mkdir(parents=True)
    for e, name in enumerate(names):
        write_hospital(folder / f"{name}.csv", e, reverse=e >= 2)
    return ff.fit(ff.Focus(M=2), ff.data.folder(folder, label="diagnosis"), rounds=10)
