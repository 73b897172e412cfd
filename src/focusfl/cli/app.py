"""The command `focusfl`: its subcommands and exit codes. Each command imports what is heavy only when it runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
import typer.core

from focusfl.cli import compare, data, deploy, flower, model, paper, report, study, sweep
from focusfl.util import interrupt
from focusfl.util.errors import Diverged, InputError, Interrupted, SeveralProblems, SimulationFailed
from focusfl.util.files import visible

typer.core.HAS_RICH = False  # help is plain text, but typer 0.20 writes "\\[default" where rich is installed
app = typer.Typer(
    help="Fair federated learning on heterogeneous data: FOCUS, the fairness measure FAA, and other methods.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(compare.run)
app.command()(compare.compare)
app.command()(sweep.sweep)
app.command()(model.predict)
app.command()(model.assign)
app.command()(model.show)
app.command()(model.export)
app.command()(report.report)
app.command()(paper.reproduce)
app.command()(paper.theory)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help="algorithms, data or experiments")]) -> None:
    """List the algorithms, data sets or experiments."""
    from rich.console import Console

    from focusfl.cli import listing

    tables = {"algorithms": listing.algorithms, "data": listing.data, "experiments": listing.experiments}
    if what not in tables:
        raise InputError(f"list {what}: expected one of {', '.join(tables)}")
    Console().print(tables[what]())


app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(flower.app, name="flower")
app.add_typer(study.app, name="study")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version")] = False) -> None:
    if show:
        from focusfl import __version__

        print(f"focusfl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; exits with 0: success, 2: wrong input, 130: interrupted, 1: any other failure."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    interrupt.end_at_second()
    try:
        code, message = _run()
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    for line in message.split("\n") if message else ():
        print(visible(line), file=sys.stderr)
    interrupt.end_at_next()  # the interpreter takes a moment to close
    sys.exit(code)


def _run() -> tuple[Any, str]:
    """Run the command; return the exit code, and a message if it failed: one line, or one per problem."""
    try:
        code, message = _outcome()
    except SeveralProblems as error:
        return 2, f"error: {error}"
    return code, " ".join(message.split())


def _outcome() -> tuple[Any, str]:
    """Run the command; return the exit code, and a message for the user if it failed."""
    hint = "Files written so far are complete. To resume, run it again (run, compare and sweep: with --resume)"
    try:
        code = app(standalone_mode=False) or 0
        return code, "interrupted" if code == interrupt.EXIT_CODE else ""  # typer turns Ctrl-C into that code
    except SeveralProblems:
        raise
    except InputError as error:
        return 2, f"error: {error}"
    except (Diverged, SimulationFailed) as error:
        return 1, f"error: {error}"
    except Interrupted as error:
        return 130, str(error)
    except OSError as error:
        return 1, f"error: {error}. {hint}"
    except Exception as error:
        if not hasattr(error, "format_message"):  # not an error in the command line but a defect: show it
            raise
        return 2, f"error: {error.format_message()} (see: focusfl --help)"
