"""What the methods that group agents found, in words: for the terminal, the page and Markdown."""

from __future__ import annotations

from focusfl.report.explain import BASES, SMALL, Row, over_seeds

SAYS = f"gained or lost: by more than noise, and more than {100 * SMALL:g} % of the loss"


def each(by_method: dict[str, list[Row]]) -> dict[str, list[str]]:
    """By the name of a method with labels: its sentences."""
    others = [row for runs in by_method.values() for row in runs if row["algorithm"] in BASES]
    labelled = {name: [row for row in runs if row["pi"] is not None] for name, runs in by_method.items()}
    return {name: over_seeds(runs, others) for name, runs in labelled.items() if runs}


def warns(line: str) -> bool:
    return line.startswith("Warning:")


def hint(by_method: dict[str, list[Row]]) -> list[str]:
    """What to run to learn who gained and who lost, where that was not run."""
    rows = [row for runs in by_method.values() for row in runs]
    known = {row["algorithm"] for row in rows} | {"local" for row in rows if row["bayes_kind"] == "agent"}
    missing = [name for name in BASES if name not in known]
    against = " and ".join(BASES[name] for name in missing)
    return [f"Add {' and '.join(missing)} to the algorithms to see who gains against {against}."] if missing else []
