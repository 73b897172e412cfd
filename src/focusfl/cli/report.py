"""focusfl report: write the results of an experiment, or of a reproduction, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focusfl.util.errors import InputError


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of an experiment, or the results of focusfl reproduce")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write (default: report.html in that folder)")
    ] = None,
) -> None:
    """Write results as one HTML page with tables and plots. In an experiment's folder, write report.md too."""
    from focusfl.report.html.page import page
    from focusfl.report.markdown import report as markdown
    from focusfl.research.paper.sections import sections as paper_sections
    from focusfl.run.folder import from_folder
    from focusfl.util import files

    path = out or folder / "report.html"
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {path}: expected a file name that ends in .html")
    if (folder / "sweep.json").exists():
        raise InputError(f"{folder} holds a sweep: look at its sweep.svg; for a report, compare the chosen options")
    name = folder.resolve().name if out is None else path.stem
    if (folder / "experiment.json").exists():
        section = from_folder(folder)
        if not section.rows:
            raise InputError(f"{folder}: no run has finished yet")
        experiment = files.read_json(folder / "experiment.json")
        with files.readable_errors(folder):
            files.write_text(folder / "report.md", files.printable(markdown(name, experiment, section)))
        sections = [section]
    else:
        sections = paper_sections(folder)
    if not sections:
        raise InputError(f"{folder}: no results.json; focusfl run, compare and reproduce write results")
    with files.readable_errors(path):
        files.write_text(path, files.printable(page(name, sections)))
    print(path)
