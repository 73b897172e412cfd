"""Natural federations: real data whose agents are real, such as hospitals, schools or speakers.

focusfl does not distribute them. They are read from a folder with one csv file per agent, which the user lays out
(docs/data.md); its contents are compared with a pin, so that results on them can be compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from focusfl.data.federation import Rows
from focusfl.data.own.entries import visible_entries
from focusfl.data.own.folder import FolderFederation, folder
from focusfl.data.own.inputs import Inputs
from focusfl.data.own.layout import expanded
from focusfl.data.store.download import user_folders
from focusfl.util.errors import InputError, require_choice
from focusfl.util.files import visible

ScaleBy = Literal["federation", "agent"]


class NaturalSet(NamedTuple):
    """A natural federation that focusfl knows.

    Attributes:
        name: As in `--data NAME`, and of its folder.
        agents: How many agents, and what they are.
        label: The label column.
        values: What the label column holds.
        published: Where it is published.
        licence: The licence seen there.
        pin: `content_digest` of its folder.
        fixed_split: Whether each agent is a folder with train.csv and test.csv, so that the split is fixed.
    """

    name: str
    agents: str
    label: str
    values: str
    published: str
    licence: str
    pin: str
    fixed_split: bool = False

    @property
    def description(self) -> str:
        """A few words for `focusfl data list`."""
        return f"{self.agents}; {self.label}: {self.values}"

    @property
    def manual_steps(self) -> str:
        """How a user gets it, and how to lay it out."""
        files = "AGENT/train.csv and AGENT/test.csv" if self.fixed_split else "one csv file"
        return (
            f"focusfl does not distribute it. It is published as: {self.published} (licence: {self.licence}). "
            f"Make a folder DIR/{self.name} with {files} per agent ({self.agents}); the label column is "
            f"{self.label} ({self.values}), all others are features. Then set FOCUSFL_FROM=DIR, or use "
            "--set data.path=DIR. If your files differ from those that focusfl's results were measured on, "
            "--set data.check=false accepts them"
        )


NATURAL: dict[str, NaturalSet] = {
    each.name: each
    for each in (
        NaturalSet(
            name="heart",
            agents="4 hospitals",
            label="disease",
            values="yes or no",
            published="Heart Disease, UCI Machine Learning Repository, cleaned and split as FLamby does "
            "(github.com/owkin/FLamby, fed_heart_disease)",
            licence="CC BY 4.0",
            pin="be1167a2b17c2d33ed69abf0c140260c7679e5ad8dd9050e3dcd5bd8f48ceb23",
            fixed_split=True,
        ),
        NaturalSet(
            name="landmine",
            agents="29 fields",
            label="mine",
            values="mine or clutter",
            published="the landmine data of L. Carin, Duke University",
            licence="none seen",
            pin="2a79ebe6464833587718c4e7c461ac0c312f5ba6b48fa816c13d1a84840e20a5",
        ),
        NaturalSet(
            name="vowel",
            agents="15 speakers",
            label="vowel",
            values="11 classes",
            published="Deterding's vowels, UCI Machine Learning Repository (Connectionist Bench, Vowel "
            "Recognition); also in Debian's r-cran-mlbench",
            licence="GPL-2 (of the package)",
            pin="215bb39de4df6a34d6649b21be746a36014bed06537512718cb68962d11d4607",
        ),
        NaturalSet(
            name="exam",
            agents="63 schools with 20 pupils or more",
            label="normexam",
            values="regression",
            published="Goldstein's exam data, in Debian's r-cran-mlmrev",
            licence="GPL-2 or later (of the package)",
            pin="9e901673a372125b54ecc3ac9ce92c75403a448a92f3bfaab1d9e67f69b6581f",
        ),
        NaturalSet(
            name="parkinsons",
            agents="42 patients",
            label="total_UPDRS",
            values="regression",
            published="Parkinsons Telemonitoring, UCI Machine Learning Repository",
            licence="none seen",
            pin="26eb875f71078084f348d17b1f8936f95fc1d60db1d657eebb39bf884d860bb4",
        ),
    )
}


@dataclass(frozen=True)
class NaturalFederation(FolderFederation):
    """A natural federation.

    Attributes:
        notes: What its user should know, one sentence each.
    """

    notes: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Return the notes: the known files need no warnings about labels and scale."""
        return list(self.notes)


# --- the five


def heart(
    seed: int = 0,
    path: str | None = None,
    hidden: int | None = None,
    scale_by: ScaleBy = "federation",
    check: bool = True,
) -> NaturalFederation:
    """Heart disease in the patients of 4 hospitals, yes or no: UCI Heart Disease, as FLamby cleans and splits it.

    Args:
        seed: Has no effect here: FLamby's split is fixed. The seed of a run still decides its training.
        path: The folder of the data, or a folder that has it as heart or natural/heart. By default the folders of
            FOCUSFL_FROM are searched.
        hidden: Hidden units of the recipe's MLP (32 by default) beside a linear model; 0 is a linear model alone.
        scale_by: Features get mean 0 and deviation 1 over the training data of the "federation", or of each
            "agent", as in FLamby. A model that was trained with "agent" takes features that are already scaled.
        check: Whether to refuse files that are not those that focusfl's results were measured on.

    Returns:
        A federation with 2 classes.

    Raises:
        InputError: The data is not there, or not what it should be; the message says what to do.

    Example:
        ``fed = heart(scale_by="agent")``
    """
    return _read("heart", seed, path, 0.2, hidden, scale_by, check)  # each hospital has test.csv: no share is used


def landmine(
    seed: int = 0,
    path: str | None = None,
    test: float = 0.2,
    hidden: int | None = None,
    scale_by: ScaleBy = "federation",
    check: bool = True,
) -> NaturalFederation:
    """Features of radar images of 29 fields, mine or clutter: the landmine data of L. Carin, Duke University.

    Args:
        seed: Decides which examples are set aside for testing.
        path: See `heart`; so for the others.
        test: The share of an agent's examples to set aside for testing.
        hidden: Hidden units of the recipe's MLP.
        scale_by: "federation" or "agent".
        check: Whether to refuse files that are not those that focusfl's results were measured on.

    Returns:
        A federation with 2 classes.

    Raises:
        InputError: The data is not there, or not what it should be; the message says what to do.
    """
    return _read("landmine", seed, path, test, hidden, scale_by, check)


def vowel(
    seed: int = 0,
    path: str | None = None,
    test: float = 0.2,
    hidden: int | None = None,
    scale_by: ScaleBy = "federation",
    check: bool = True,
) -> NaturalFederation:
    """Vowels of 15 speakers, 11 classes: Deterding's data.

    Args:
        seed: Decides which examples are set aside for testing.
        path: See `heart`; so for the others.
        test: The share of an agent's examples to set aside for testing.
        hidden: Hidden units of the recipe's MLP.
        scale_by: "federation" or "agent".
        check: Whether to refuse files that are not those that focusfl's results were measured on.

    Returns:
        A federation with 11 classes.

    Raises:
        InputError: The data is not there, or not what it should be; the message says what to do.
    """
    return _read("vowel", seed, path, test, hidden, scale_by, check)


def exam(
    seed: int = 0,
    path: str | None = None,
    test: float = 0.2,
    hidden: int | None = None,
    scale_by: ScaleBy = "federation",
    check: bool = True,
) -> NaturalFederation:
    """Exam results of the pupils of 63 schools, regression: Goldstein's data.

    Args:
        seed: Decides which examples are set aside for testing.
        path: See `heart`; so for the others.
        test: The share of an agent's examples to set aside for testing.
        hidden: Hidden units of the recipe's MLP.
        scale_by: "federation" or "agent".
        check: Whether to refuse files that are not those that focusfl's results were measured on.

    Returns:
        A federation for regression.

    Raises:
        InputError: The data is not there, or not what it should be; the message says what to do.
    """
    return _read("exam", seed, path, test, hidden, scale_by, check)


def parkinsons(
    seed: int = 0,
    path: str | None = None,
    test: float = 0.2,
    hidden: int | None = None,
    scale_by: ScaleBy = "federation",
    check: bool = True,
) -> NaturalFederation:
    """Symptom scores (total UPDRS) of 42 patients from their voices, regression: UCI Parkinsons Telemonitoring.

    Args:
        seed: Decides which examples are set aside for testing.
        path: See `heart`; so for the others.
        test: The share of an agent's examples to set aside for testing.
        hidden: Hidden units of the recipe's MLP.
        scale_by: "federation" or "agent".
        check: Whether to refuse files that are not those that focusfl's results were measured on.

    Returns:
        A federation for regression.

    Raises:
        InputError: The data is not there, or not what it should be; the message says what to do.
    """
    return _read("parkinsons", seed, path, test, hidden, scale_by, check)


# --- where it is, and whether it is the same


def find(name: str, path: str | Path | None = None) -> Path:
    """Return the folder of a natural federation.

    Args:
        name: A key of NATURAL.
        path: The folder itself, or one that has it as NAME or natural/NAME; None searches FOCUSFL_FROM.

    Raises:
        InputError: It is not there; the message says where it is published and how to lay it out.
    """
    root = locate(name, path)
    if root is None:
        places = user_folders(None) if path is None else [path]
        searched = f"not found in {', '.join(map(str, places))}" if places else "not found, FOCUSFL_FROM is not set"
        raise InputError(f"{name}: {visible(searched)}. {NATURAL[name].manual_steps}")
    return root


def locate(name: str, path: str | Path | None = None) -> Path | None:
    """Return the folder as `find` does; None if it is not there."""
    roots = user_folders(None) if path is None else [expanded(path)]
    for place in (root / below for root in roots for below in (name, f"natural/{name}")):
        if place.is_dir():
            return place
    own = path is not None and any(next(roots[0].glob(files), None) for files in ("*.csv", "*/train.csv"))
    return roots[0] if own else None


def describe_files(name: str, root: Path) -> str:
    """Return a sentence if a folder does not hold exactly the files of the pin, else nothing."""
    if content_digest(root) == NATURAL[name].pin:
        return ""
    return f"{name}: the files of {root} are not those that focusfl's results were measured on"


def content_digest(root: Path) -> str:
    """Return the sha256 over the sorted list of (name, sha256 of the bytes) of all files in a folder.

    Hidden files and README are left out, as the reader leaves them out.
    """
    files = [[file.relative_to(root).as_posix(), _sha256(file)] for file in sorted(_files(root, root))]
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def folder_size(root: Path) -> int:
    """Return the size in bytes of the files that `content_digest` is about."""
    return sum(file.stat().st_size for file in _files(root, root))


def _files(place: Path, root: Path) -> list[Path]:
    entries = visible_entries(place, root)
    return [file for entry in entries for file in (_files(entry, root) if entry.is_dir() else [entry])]


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


# --- reading


def _read(
    name: str,
    seed: int,
    path: str | None,
    test: float,
    hidden: int | None,
    scale_by: ScaleBy,
    check: bool,
) -> NaturalFederation:
    require_choice("data.scale_by", scale_by, ("federation", "agent"))
    root = find(name, path)
    differ = describe_files(name, root)
    if check and differ:
        advice = "Replace them, or accept yours with --set data.check=false (check=False in Python)"
        raise InputError(f"{differ}. {advice}")
    label, whole = NATURAL[name].label, scale_by == "federation"
    fed = folder(root, seed=seed, label=label, hidden=hidden, scale=whole, test=test)
    notes = [*fed.remarks(), f"{differ}: its numbers cannot be compared with others"] if differ else []
    if scale_by == "agent":
        fed = _scale_each(fed)
        notes.append("each agent's features are scaled by its own mean and deviation: so must be new data")
    values = {field.name: getattr(fed, field.name) for field in fields(fed)}
    return NaturalFederation(**values | {"name": f"{name} (other files)" if differ else name}, notes=tuple(notes))


def _scale_each(fed: FolderFederation) -> FolderFederation:
    """Scale each agent's features by the mean and deviation of its own training data; a constant becomes 0.

    No scaling fits all agents, so the federation's inputs have none: they are arrays of scaled features, and a
    saved model does not take raw tables.
    """
    scales = [_mean_and_deviation(fed.train(e).x) for e in range(fed.E)]

    def scaled(rows: Rows) -> Rows:
        each = [(rows.of(e).x - mean) / deviation for e, (mean, deviation) in enumerate(scales)]
        return replace(rows, x=torch.cat(each))

    inputs = Inputs("arrays", tuple(fed.training.x.shape[1:]))
    return replace(fed, training=scaled(fed.training), testing=scaled(fed.testing), inputs=inputs)


def _mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    smallest, constant = x.amin(0), x.amin(0) == x.amax(0)  # rounding can give a constant a tiny deviation
    return torch.where(constant, smallest, x.mean(0)), torch.where(constant, 1, x.std(0, correction=0))
