"""focusfl run natural: the benchmark on natural federations. What is heavy is imported only when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from focusfl.report.rows import Row
    from focusfl.research.natural.benchmark import Findings
    from focusfl.run.experiment import Experiment


def run(
    data: str,
    algorithms: str,
    seeds: str,
    rounds: int | None,
    changes: Sequence[str],
    out: Path,
    resume: bool,
    overwrite: bool,
    models: bool,
    track: Sequence[str],
    as_json: bool,
) -> None:
    """Run every method on every natural federation, and print one table.

    Args:
        data: Comma-separated data sets; empty for all.
        algorithms: Comma-separated methods; empty for all.
        seeds: Comma-separated seeds; empty for five.
        rounds: The number of rounds; None is that of the recipes.
        changes: The options of `--set`, for every data set.
        out: Folder for the results.
        resume: Continue unfinished experiments in it.
        overwrite: Delete the results of these data sets in it and start over.
        models: Save the trained model of every run.
        track: Tools that track the runs.
        as_json: Print natural.json instead of tables.
    """
    from focusfl.cli.compare import note, parse_seeds, resumable
    from focusfl.data.sets.natural import NATURAL
    from focusfl.research.natural import benchmark, report
    from focusfl.run.compare import compare
    from focusfl.run.experiment import split_list
    from focusfl.run.tracking import check_tools, for_experiment
    from focusfl.util import files

    def run_one(experiment: Experiment, folder: Path) -> list[Row]:
        return compare(
            experiment,
            folder,
            resume,
            overwrite,
            note=note,
            models=models,
            callbacks=lambda method, seed: for_experiment(track, folder, method, seed),
        )

    def write(found: Mapping[str, Findings]) -> None:
        report.write(out, described, found)

    with resumable(resume, overwrite):
        check_tools(track)
        described = benchmark.experiments(
            split_list(data) or list(NATURAL),
            split_list(algorithms) or ["all"],
            parse_seeds(seeds) or benchmark.SEEDS,
            rounds,
            changes,
        )
        files.make_folder(out)
        found = benchmark.run(described, out, run_one, note, write)
    if as_json:
        print((out / "natural.json").read_text(encoding="utf-8"), end="")
        return
    print(report.tables(found))
    print(f"\nResults: {out / 'natural.md'} and natural.json; a page about one data set: focusfl report {out}/NAME")
