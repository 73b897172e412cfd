"""For the tests of the page: small real runs, a parser of the page, and malicious data."""

import re
import tempfile
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from focusfl.report.section import JudgedClaim, Section
from focusfl.run.compare import compare
from focusfl.run.experiment import Experiment
from focusfl.run.folder import from_folder

METHODS = ["focus", "fedavg", "afl"]
KEYS = ("avg_acc", "avg_loss", "faa", "agnostic_loss")
NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
PAPER = {
    ("", "focus"): {"avg_acc": 0.95, "faa": 0.094, "rounds_0.7": 4.0},
    ("", "fedavg"): {"avg_acc": 0.93, "faa": 0.6},
    ("", "fedma"): {"avg_acc": 0.9},
}
EVIL = "<img src=x onerror=alert(1)></script><script>document.title='hacked'</script>\"'&"


@cache
def folder(data: str = "rotated-digits") -> Path:
    """Three methods, two seeds, six rounds."""
    out = Path(tempfile.mkdtemp()) / "small"
    said = {"data": data, "algorithms": METHODS, "seeds": [0, 1], "rounds": 6, "engine": "vectorised"}
    compare(Experiment.parse(said), out, progress=False, note=lambda line: None)
    return out


@cache
def section() -> Section:
    """Everything that a section can have; the paper's numbers are made up."""
    more = {
        "claims": [JudgedClaim("FOCUS is fairer than FedAvg.", "holds weakly", "by a little")],
        "scale": "small",
    }
    more |= {"left_out": {"pfnm": "needs layers"}, "missing": ["FOCUS, seed 2"], "deviations": ["6 rounds"]}
    more |= {"expect": PAPER, "made": {"versions": {"torch": "2.13"}, "machine": "two cores", "empty": None}}
    return replace(from_folder(folder()), title="Table 1", **more)


@cache
def evil() -> Section:
    bad = {"part": EVIL, "method": f"focus:{EVIL}", "data": EVIL, "params": {EVIL: EVIL}}
    more = {
        "missing": [EVIL],
        "deviations": [EVIL],
        "left_out": {EVIL: EVIL},
        "claims": [JudgedClaim(EVIL, EVIL, EVIL)],
    }
    more |= {"expect": {(EVIL, EVIL): {"faa": 1.0}}, "made": {EVIL: {EVIL: EVIL}}}
    return Section(EVIL, EVIL, EVIL, [row | bad for row in section().rows], **more)


def of(method: str, key: str) -> list:
    return [row[key] for row in section().rows if row["method"] == method]


def numbers(cell: str) -> list[tuple[float, float]]:
    """Each with half a unit of its last digit."""
    found = re.findall(rf"[+{MINUS}]?\d+(?:\.\d+)?", cell)
    return [(float(n.replace(MINUS, "-")), 0.5 * 10.0 ** -len(n.partition(".")[2]) + 1e-9) for n in found]


def assert_shows(cell: str, *values: float) -> None:
    assert len(numbers(cell)) == len(values), cell
    for v, (shown, half) in zip(values, numbers(cell), strict=True):
        assert shown == pytest.approx(v, abs=half)


class Read(HTMLParser):
    """Tables as [rows][cells of text], what is bold in them, links, the names of elements, the plots' data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables, self.elements, self.links, self.bold, self.data = [], [], [], [], ""
        self.within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "action", "data", "srcset", "poster")]
        into = {"table": self.tables, "tr": self.tables and self.tables[-1]}
        if tag in into:
            into[tag].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
        self.within.append("plots" if ("id", "plots") in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        while self.within and self.within.pop() not in (tag, "plots"):
            pass

    def handle_data(self, data: str) -> None:
        if "th" in self.within or "td" in self.within:
            self.tables[-1][-1][-1] += data
        if self.within and self.within[-1] == "strong":
            self.bold.append((self.tables[-1][-1][0], len(self.tables[-1][-1]) - 1))
        if self.within and self.within[-1] == "plots":
            self.data += data

    def find(self, heading: str) -> list[list[str]]:
        return next(table for table in self.tables if any(heading in cell for row in table for cell in row))
