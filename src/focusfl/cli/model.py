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

    from focusfl.run.saved.trained import TrainedModel

ModelFolder = Annotated[Path, typer.Argument(help="A saved model, for example runs/NAME/runs/focus-seed0/model")]
Agent = Annotated[str | None, typer.Option("--agent", help="Name or number of the agent whose model is used")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import the model's own network or method: only for files you trust")
]


def predict(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(help="New examples: csv, parquet or npz; columns in any order")],
    agent: Agent = None,
    out: Annotated[Path | None, typer.Option("--out", help="The csv file to write (default: print it)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Predict new examples with the model of one agent: classes and probabilities, or values."""
    import csv
    import io

    from focusfl.util import files

    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{out} exists: choose another file, or --overwrite")
    trained = _load(model, allow_code)
    chosen = _agent(trained, agent)
    new = trained.inputs.read(file)
    _say_others(new.others, file)
    predictions = trained.predict(chosen, new.x)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names, columns = _columns(trained, predictions)
    carried = {} if new.y is None else {_cell(trained.inputs.label): [str(label) for label in new.y]}
    carried = new.others | carried
    writer.writerow([*carried, *names])
    writer.writerows(zip(*carried.values(), *columns, strict=True))
    if out is None:
        print(text.getvalue(), end="")
        return
    files.make_folder(out.parent)
    files.write_text(out, text.getvalue())
    print(f"{len(predictions)} predictions with the model of {visible(trained.agents[chosen])}: {out}")


def assign(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(help="The newcomer's examples, with labels if there are any")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Save the newcomer's own model in this folder, for focusfl predict")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The newcomer's name in that model")] = "newcomer",
    allow_code: AllowCode = False,
) -> None:
    """Find the models that suit a newcomer who did not train."""
    trained = _load(model, allow_code)
    new = trained.inputs.read(file)
    _say_others(new.others, file)
    newcomer = trained.assign(new.x, new.y)
    how = (
        f"by its {len(new.x)} labelled examples"
        if new.y is not None
        else f"by {len(new.x)} examples without labels"
    )
    pi = newcomer.pi
    if pi is None:
        print(f"The newcomer predicts with the model that {visible(trained.about.title)} gives to new agents.")
    else:
        m = int(pi.argmax())
        others = [
            visible(name) for name, group in zip(trained.agents, _clusters(trained), strict=False) if group == m
        ]
        shared = f", with {', '.join(others[:10])}{' and others' if len(others) > 10 else ''}" if others else ""
        print(f"The newcomer belongs to cluster {m}{shared}: label {float(pi[m]):.3f}, {how}.")
        print("Labels: " + ", ".join(f"{k}: {float(p):.3f}" for k, p in enumerate(pi) if p > 5e-4))
    if newcomer.sure is not None:
        print(f"How sure: {newcomer.sure:.0%}, the mean label of that cluster over resamples of the examples.")
        print("Without labels this says which model is most confident, not which is right: check with labels.")
    if out is not None:
        newcomer.as_model(name).save(out)
        print(f"The newcomer's model: {out}")


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
    allow_code: AllowCode = False,
) -> None:
    """Write an agent's predictor for use without focusfl; the file is checked."""
    trained = _load(model, allow_code)
    chosen = _agent(trained, agent)
    kind: Any = format or out.suffix.removeprefix(".")
    trained.export(chosen, kind, out)
    print(f"{out}: the predictor of {visible(trained.agents[chosen])}, checked against the model")


def _load(model: Path, allow_code: bool) -> TrainedModel:
    from focusfl.run.saved.store import load

    return load(model, allow_code=allow_code)


def _agent(model: TrainedModel, agent: str | None) -> int:
    if agent is None and len(model.agents) != 1:
        known = ", ".join(model.agents[:20]) or "none: assign a newcomer first (focusfl assign)"
        raise InputError(f"--agent is missing: whose model? Known: {known}")
    return model.number(agent if agent is not None else 0)


def _clusters(model: TrainedModel) -> list[int]:
    results = model.about.results
    return [] if results is None else list(results["clusters"])


def _columns(model: TrainedModel, predictions: Tensor) -> tuple[list[str], list[list[str]]]:
    """Return the names and the cells of the columns that are added: predictions, and probabilities of classes."""
    if model.classes is None:
        return ["prediction"], [[repr(v) for v in predictions.tolist()]]
    names = model.labels or tuple(str(c) for c in range(model.classes))
    cells = [_cell(name) for name in names]
    chosen = [cells[c] for c in predictions.argmax(1).tolist()]
    shares = [[f"{p:.6f}" for p in column] for column in predictions.T.tolist()]
    return ["prediction", *(f"p_{visible(name)}" for name in names)], [chosen, *shares]


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


def _say_others(others: dict[str, list[str]], file: Path) -> None:
    if others:
        print(f"note: {file}: not inputs of the model, carried over: {visible(', '.join(others))}", file=sys.stderr)
