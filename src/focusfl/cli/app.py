"""focusfl on the command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from focusfl.cli import data as data_cli
from focusfl.cli import deploy as deploy_cli
from focusfl.cli import study as studies_cli
from focusfl.util.errors import Diverged, InputError, Interrupted, require_choice

if TYPE_CHECKING:
    from focusfl.run.experiment import Experiment

typer.core.HAS_RICH = False  # help is plain text, but typer 0.20 writes "\\[default" where rich is installed
app = typer.Typer(
    help="Fair federated learning on heterogeneous data: FOCUS, FAA, and the methods they are compared with.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Set = Annotated[list[str], typer.Option("--set", help="Change an option: focus.M=2, train.lr=0.05, data.r=0.1")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results. Default: one under runs/")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an unfinished experiment in that folder")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what that folder holds")]
Json = Annotated[bool, typer.Option("--json", help="Print results.json instead of tables")]


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="Name (see: focusfl list experiments) or a TOML file")],
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run an experiment described in TOML."""
    from focusfl.run import experiment as experiments

    chosen = experiments.load(experiments.find(experiment), set_)
    _execute(chosen, out or Path("runs") / chosen.name, resume, overwrite, json)


@app.command()
def compare(
    data: Annotated[str, typer.Option(help="See: focusfl list data")] = "rotated-digits",
    algorithms: Annotated[
        str, typer.Option(help="Names with commas, qffl:q=0.1 for an option, or all; see: focusfl list algorithms")
    ] = "focus,fedavg",
    seeds: Annotated[str, typer.Option(help="Numbers with commas")] = "0,1,2",
    rounds: Annotated[int | None, typer.Option(help="T; by default what suits the data")] = None,
    engine: Annotated[str, typer.Option(help="auto, serial, vectorised or flower")] = "auto",
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Compare methods on one data set; writes DIR/results.json."""
    import re

    from focusfl.run.experiment import Experiment, apply

    names = [name.strip() for name in re.split(r",(?![^\[]*\])", algorithms) if name.strip()]  # not within [...]
    raw: dict[str, Any] = {
        "data": {"name": data},
        "algorithms": names,
        "seeds": _numbers(seeds),
        "engine": engine,
    }
    raw |= {} if rounds is None else {"rounds": rounds}
    chosen = Experiment.parse(apply(raw, set_))
    _execute(chosen, out or Path("runs") / f"{data}-{_short(chosen)}", resume, overwrite, json)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(help="Tables and figures of the paper, or all")] = [],  # noqa: B006
    scale: Annotated[str, typer.Option(help="small: minutes a cell; paper: the paper's setting")] = "small",
    jobs: Annotated[int, typer.Option(help="Cells at the same time", min=1)] = 1,
    precision: Annotated[
        str, typer.Option(help="float32; or bf16 for what is missing: twice as fast where the processor has units")
    ] = "float32",
    list_: Annotated[
        bool, typer.Option("--list", help="Show what is done, running, missing; compute nothing")
    ] = False,
    cells: Annotated[Path, typer.Option(help="Folder of the runs and their checkpoints")] = Path("runs/cells"),
    results: Annotated[Path, typer.Option(help="Folder of the results: NAME.SCALE.json and README.md")] = Path(
        "results"
    ),
) -> None:
    """Compute the paper's tables and figures; killed at any time, the same command goes on where it was."""
    from rich.console import Console

    from focusfl.research.paper import readme
    from focusfl.research.paper.reproduction import catalogue, load
    from focusfl.research.paper.stored_results import overview
    from focusfl.research.paper.workers import reproduce as compute
    from focusfl.util import files
    from focusfl.util.device import NO_BF16_SUPPORT, find_device, supports_bf16

    known = list(catalogue())
    if not names and not list_:
        raise InputError(f"which? One or more of {', '.join(known)}, or all")
    require_choice("--precision", precision, ("float32", "bf16"))
    wanted = [load(name, scale) for name in (known if names in ([], ["all"]) else names)]
    if list_:
        Console().print(overview(wanted, cells, results, precision))
        return
    if precision == "bf16" and not supports_bf16(find_device("cpu")):
        _note(NO_BF16_SUPPORT)
        precision = "float32"
    try:
        failed = compute(wanted, cells, results, jobs, precision=precision)
    finally:  # also of what there is when it is stopped
        if results.is_dir():
            files.write_text(results / "README.md", readme.markdown(results))
    for line in failed:
        _note(f"failed: {line}")
    print(f"Results: {results / 'README.md'}")


@app.command()
def theory(
    quick: Annotated[bool, typer.Option("--quick", help="Only a few settings: seconds, not half a minute")] = False,
) -> None:
    """Compare the bounds of the paper's theorems with measurements and print Markdown tables."""
    from focusfl.research.theory.check import check_all
    from focusfl.research.theory.check import report as tables
    from focusfl.util.progress import TotalProgress

    with TotalProgress(1, unit="settings") as bar:
        rows = check_all(quick, lambda done, total: bar(done / total, done, total))
    print(tables(rows))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of an experiment, or of the results of focusfl reproduce")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Page to write. Default: report.html in that folder")
    ] = None,
) -> None:
    """Show results as one page with tables and plots; an experiment's folder also gets report.md, in Markdown."""
    from focusfl.report.html.page import page
    from focusfl.report.markdown import report as markdown
    from focusfl.research.paper.sections import sections as stored_sections
    from focusfl.run.folder import from_folder
    from focusfl.util import files

    path = out or folder / "report.html"
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {path}: expected the name of a page, one that ends in .html")
    name = folder.resolve().name if out is None else path.stem
    if (folder / "experiment.json").exists():
        section = from_folder(folder)
        if not section.rows:
            raise InputError(f"{folder}: no run has finished yet")
        said = files.read_json(folder / "experiment.json")
        with files.readable_errors(folder):
            files.write_text(folder / "report.md", files.printable(markdown(name, said, section)))
        sections = [section]
    else:
        sections = stored_sections(folder)
    if not sections:
        raise InputError(f"{folder}: no results.json; focusfl run, compare and reproduce write results")
    with files.readable_errors(path):
        files.write_text(path, files.printable(page(name, sections)))
    print(path)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help="algorithms, data or experiments")]) -> None:
    """What there is: algorithms, data, experiments."""
    from rich.console import Console

    from focusfl.cli import listing as catalogue

    tables = {
        "algorithms": catalogue.algorithms,
        "data": catalogue.data,
        "experiments": catalogue.experiments,
    }
    if what not in tables:
        raise InputError(f"list {what}: expected one of {', '.join(tables)}")
    Console().print(tables[what]())


app.add_typer(data_cli.app, name="data")
app.add_typer(deploy_cli.app, name="deploy")
app.add_typer(studies_cli.app, name="study")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version")] = False) -> None:
    if show:
        from focusfl import __version__

        print(f"focusfl {__version__}")
        raise typer.Exit


def main() -> None:
    """Exit codes: 0 done, 2 wrong input, 130 interrupted, 1 anything else."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except InputError as error:
        _fail(2, f"error: {' '.join(str(error).split())}")
    except Diverged as error:
        _fail(1, f"error: {error}")
    except Interrupted as error:
        _fail(130, str(error))
    except KeyboardInterrupt:
        _fail(130, "interrupted")
    except OSError as error:
        _fail(1, f"error: {error}. What was written before is whole; --resume goes on from there")
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a complaint about the command line but a defect: show it
            raise
        _fail(2, f"error: {error.format_message()} (see: focusfl --help)")


def _execute(experiment: Experiment, out: Path, resume: bool, overwrite: bool, as_json: bool) -> None:
    import json

    from rich.console import Console

    from focusfl.report.terminal import show
    from focusfl.run.compare import compare, read_left_out

    if resume and overwrite:
        raise InputError("--resume goes on with what is there, --overwrite deletes it: use one of them")
    try:
        rows = compare(experiment, out, resume, overwrite, note=_note)
    except Interrupted as stopped:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        again = " ".join(_quote(word) for word in ["focusfl", *words, "--resume"])
        raise Interrupted(f"{stopped}; nothing is lost. To go on: {again}") from stopped
    except KeyboardInterrupt as stopped:  # the second Ctrl-C
        raise Interrupted("stopped at once; --resume goes on from the last checkpoint") from stopped
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    show(rows, read_left_out(out), Console())
    print(f"Results: {out / 'results.json'}")


def _quote(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--seeds {text}: expected whole numbers with commas, for instance 0,1,2") from error


def _short(experiment: Experiment) -> str:
    import hashlib

    return hashlib.sha256(experiment.model_dump_json().encode()).hexdigest()[:8]


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def _fail(code: int, line: str) -> None:
    print(line, file=sys.stderr)
    sys.exit(code)
