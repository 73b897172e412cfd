"""focusfl reproduce and focusfl theory: the paper's tables, figures and theorems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from focusfl.util.errors import InputError, require_choice


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Tables and figures of the paper, or all")] = [],  # noqa: B006
    scale: Annotated[str, typer.Option(help="small: minutes per run; paper: the paper's setting")] = "small",
    jobs: Annotated[int, typer.Option(help="Number of runs at the same time", min=1)] = 1,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, or bf16 to compute what is missing in bfloat16: about twice as fast on processors with "
            "bfloat16 support"
        ),
    ] = "float32",
    list_: Annotated[
        bool, typer.Option("--list", help="Show what is done, running or missing, and compute nothing")
    ] = False,
    cells: Annotated[Path, typer.Option(help="Folder for the runs and their checkpoints")] = Path("runs/cells"),
    results: Annotated[Path, typer.Option(help="Folder for the results: NAME.SCALE.json and README.md")] = Path(
        "results"
    ),
) -> None:
    """Compute the paper's tables and figures. If interrupted, run it again to resume."""
    from rich.console import Console

    from focusfl.research.paper import readme
    from focusfl.research.paper.reproduction import catalogue, load
    from focusfl.research.paper.stored_results import overview
    from focusfl.research.paper.workers import reproduce as compute
    from focusfl.util import files
    from focusfl.util.device import NO_BF16_SUPPORT, find_device, supports_bf16

    known = list(catalogue())
    if not names and not list_:
        raise InputError(f'name at least one table, or "all": {", ".join(known)}')
    require_choice("--precision", precision, ("float32", "bf16"))
    wanted = [load(name, scale) for name in (known if names in ([], ["all"]) else names)]
    if list_:
        Console().print(overview(wanted, cells, results, precision))
        return
    if precision == "bf16" and not supports_bf16(find_device("cpu")):
        print(f"note: {NO_BF16_SUPPORT}", file=sys.stderr)
        precision = "float32"
    try:
        failed = compute(wanted, cells, results, jobs, precision=precision)
    finally:  # if it is interrupted, the page shows what has finished
        if results.is_dir():
            files.write_text(results / "README.md", readme.markdown(results))
    for line in failed:
        print(f"note: failed: {line}", file=sys.stderr)
    print(f"Results: {results / 'README.md'}")


def theory(
    quick: Annotated[
        bool, typer.Option("--quick", help="Check only a few settings: seconds instead of half a minute")
    ] = False,
) -> None:
    """Compare the paper's bounds with measurements. Prints Markdown tables."""
    from focusfl.research.theory.check import check_all
    from focusfl.research.theory.check import report as tables
    from focusfl.util.progress import TotalProgress

    with TotalProgress(1, unit="settings") as bar:
        rows = check_all(quick, lambda done, total: bar(done / total, done, total))
    print(tables(rows))
