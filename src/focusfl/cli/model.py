"""focusfl predict, assign, show and export: use a trained model."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focusfl.util.errors import InputError
from focusfl.util.files import visible

if TYPE_CHECKING:
    from torch import Tensor

    from focusfl.data.own.inputs import NewData
    from focusfl.run.saved.trained import Newcomer, TrainedModel

ModelFolder = Annotated[Path, typer.Argument(help="A saved model, for example runs/NAME/runs/focus-seed0/model")]
Agent = Annotated[str | None, typer.Option("--agent", help="Name or number of the agent whose model is used")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out names, if it exists")]
NOT_CSV = (".npz", ".npy", ".json", ".xlsx")  # names that promise another format than what would be written
TIE = 0.02  # labels that differ by less do not tell clusters apart
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the model's own network or method: only for files you trust")
]


def predict(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(help="New examples: csv, parquet or npz; columns in any order")],
    agent: Agent = None,
    out: Annotated[Path | None, typer.Option("--out", help="The csv or parquet file to write")] = None,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
) -> None:
    """Predict new examples with the model of one agent: classes and probabilities, or values."""
    from focusfl.util import files

    if out is not None:
        _check_out(out, model, overwrite)
        if out.suffix.lower() in NOT_CSV:
            raise InputError(f"{out}: predictions are written as csv or parquet: choose another name")
    trained = _load(model, allow_code)
    chosen = _agent(trained, agent)
    new = _read(trained, file)
    if new.others:
        _note(f"{file}: not inputs of the model, carried over: {', '.join(new.others)}")
    predictions = trained.predict(chosen, new.x)
    added = _columns(trained, predictions)
    table = _carried(trained, new, added, file) | added
    name = visible(trained.agents[chosen])
    _note(f"predicted with the model of {name}")
    if out is None:
        print(_csv(table), end="")
        return
    files.make_folder(out.parent)
    if out.suffix.lower() == ".parquet":
        _write_parquet(out, table)
    else:
        files.write_text(out, _csv(table))
    print(f"{len(predictions)} predictions with the model of {name}: {out}")


def assign(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(help="The newcomer's examples, with labels if there are any")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Save the newcomer's own model in this folder, for focusfl predict")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The newcomer's name in that model")] = "newcomer",
    overwrite: Overwrite = False,
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="Assign by the models' confidence, without labels")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Find the models that suit a newcomer who did not train."""
    from focusfl.run.saved.given_labels import named_labels

    if out is not None:
        _check_out(out, model, overwrite)
    trained = _load(model, allow_code)
    new = _read(trained, file)
    if new.y is None and not no_labels:
        _miss_labels(trained, new, file)
    if new.others:
        _note(f"{file}: not inputs of the model, not used: {', '.join(new.others)}")
    y = None if no_labels or new.y is None else named_labels(new.y, trained.labels, trained.classes, new.at)
    newcomer = trained.assign(new.x, y)
    print("\n".join(_assignment(trained, newcomer)))
    if out is not None:
        newcomer.as_model(name).save(out)
        print(f"The newcomer's model: {out}")


def _miss_labels(model: TrainedModel, new: NewData, file: Path) -> None:
    """Say that there are no labels; refuse a file whose label column may be misspelt."""
    from focusfl.data.own.inputs import resembling

    label = model.inputs.label
    similar = resembling(label, new.others)
    if similar is not None:
        hint = "Then rename that column; if there are no labels, use --no-labels"
        raise InputError(f"{file}: no column {label!r}; did you mean {similar!r}? {hint}")
    what = "no y" if model.inputs.kind == "arrays" else f"no label column {label!r}"
    _note(f"{file}: {what}: the models' confidence decides (--no-labels asks for that)")


def _assignment(model: TrainedModel, newcomer: Newcomer) -> list[str]:
    """Say to which cluster a newcomer belongs, with whom, and how sure that is."""
    n, pi = newcomer.examples, newcomer.pi
    how = f"by its {n} labelled examples" if newcomer.labelled else f"by {n} examples without labels"
    if pi is None:
        return [f"The newcomer predicts with the model that {visible(model.about.title)} gives to new agents."]
    m, labels = int(pi.argmax()), sorted(pi.tolist(), reverse=True)
    if len(labels) > 1 and labels[0] - labels[1] < TIE:
        lines = [f"Cannot tell to which cluster the newcomer belongs, {how}: its model is a mixture of several."]
    else:
        others = [name for name, group in zip(model.agents, _clusters(model), strict=False) if group == m]
        names = visible(", ".join(others[:10]))
        shared = f", with {names}{' and others' if len(others) > 10 else ''}" if others else ""
        lines = [f"The newcomer belongs to cluster {m}{shared}: label {float(pi[m]):.3f}, {how}."]
    lines.append("Labels: " + ", ".join(f"{k}: {float(p):.3f}" for k, p in enumerate(pi) if p > 5e-4))
    if newcomer.sure is not None:
        lines += [
            f"How sure: {newcomer.sure:.0%}, the mean label of that cluster over resamples of the examples.",
            "Without labels this says which model is most confident, not which is right: check with labels.",
        ]
    return lines


def show(model: ModelFolder) -> None:
    """Show the card of a saved model: what it is, for whom, how fair, and for whom not."""
    from rich.console import Console
    from rich.markdown import Markdown

    from focusfl.report.card import card
    from focusfl.run.saved.store import read

    text = card(read(model)[0].model_dump(mode="json"))
    if sys.stdout.isatty():
        Console().print(Markdown(text, hyperlinks=False))
    else:
        print(text, end="")


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Argument(help="The file to write")],
    agent: Agent = None,
    format: Annotated[
        str, typer.Option("--format", help="onnx, pt2 or safetensors (default: by the file's name)")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Write an agent's predictor for use without focusfl; the file is checked."""
    if out.is_dir():
        raise InputError(f"{out}: a folder; name the file to write, for example {out / 'model.onnx'}")
    _check_out(out, model, overwrite)
    trained = _load(model, allow_code)
    chosen = _agent(trained, agent)
    kind: Any = format or out.suffix.removeprefix(".")
    trained.export(chosen, kind, out)
    print(f"{out}: the predictor of {visible(trained.agents[chosen])}, checked against the model")


def _load(model: Path, allow_code: bool) -> TrainedModel:
    from focusfl.run.saved.store import load

    return load(model, allow_code=allow_code)


def _read(model: TrainedModel, file: Path) -> NewData:
    from focusfl.run.saved.new_data import read_examples

    new = read_examples(model.inputs, file)
    for note in new.notes:
        _note(note)
    return new


def _agent(model: TrainedModel, agent: str | None) -> int:
    if agent is None and len(model.agents) != 1:
        known = ", ".join(model.agents[:20]) or "none: assign a newcomer first (focusfl assign)"
        raise InputError(f"--agent is missing: whose model? Known: {known}")
    return model.number(agent if agent is not None else 0)


def _clusters(model: TrainedModel) -> list[int]:
    results = model.about.results
    return [] if results is None else list(results["clusters"])


def _columns(model: TrainedModel, predictions: Tensor) -> dict[str, list[Any]]:
    """Return the columns that are added: predictions, and the probabilities of the classes."""
    if model.classes is None:
        return {"prediction": predictions.tolist()}
    names = model.labels or tuple(str(c) for c in range(model.classes))
    cells = [_cell(name) for name in names]
    shares = {f"p_{visible(name)}": column for name, column in zip(names, predictions.T.tolist(), strict=True)}
    return {"prediction": [cells[c] for c in predictions.argmax(1).tolist()], **shares}


def _cell(name: str) -> str:
    """Return a name from the model for a csv file: a spreadsheet must not take it for a formula.

    Example:
        >>> _cell("=cmd()"), _cell("-1"), _cell("ill")
        ("'=cmd()", '-1', 'ill')
    """
    text = visible(name)
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _carried(model: TrainedModel, new: NewData, added: dict[str, list[Any]], file: Path) -> dict[str, list[str]]:
    """Return the columns of the file that are no inputs; those that would be there twice get another name."""
    carried = dict(new.others)
    if new.y is not None:
        carried[_cell(model.inputs.label)] = ["" if label is None else str(label) for label in new.y]
    for name in [name for name in carried if name in added]:
        other = f"{name}_before"
        while other in carried or other in added:
            other += "_before"
        carried = {other if key == name else key: cells for key, cells in carried.items()}
        _note(f"{file}: its column {name!r} is now {other!r}: the new predictions have that name")
    return carried


def _csv(table: dict[str, list[Any]]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    shown = [
        [f"{cell:.6f}" if name.startswith("p_") and isinstance(cell, float) else cell for cell in cells]
        for name, cells in table.items()
    ]
    writer.writerows(zip(*shown, strict=True))
    return text.getvalue()


def _write_parquet(path: Path, table: dict[str, list[Any]]) -> None:
    import importlib

    from focusfl.util import files

    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f'{path}: writing it needs pyarrow: pip install "focusfl[tables]"') from error
    files.write(path, lambda temporary: parquet.write_table(arrow.table(table), temporary))


def _check_out(out: Path, model: Path, overwrite: bool) -> None:
    """Refuse to write over something, or into the model that is used."""
    place, used = out.expanduser().resolve(), model.expanduser().resolve()
    if place == used or used in place.parents:
        raise InputError(f"{out} is the model that is used, or inside it: choose another place")
    empty = out.is_dir() and not any(out.iterdir())
    if out.exists() and not empty and not overwrite:
        raise InputError(f"{out} exists: choose another name, or --overwrite")


def _note(text: str) -> None:
    print(visible(f"note: {text}"), file=sys.stderr)
