"""The Python on the pages runs as it stands, and every link leads somewhere."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.engines import ENGINES
from focusfl.run.loop import run
from focusfl.run.setup import Setup

ROOT = Path(__file__).parents[2]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
def test_the_python_of_the_readme_runs(capsys):
    blocks = python_blocks("README.md")[1:]  # the first makes csv files
    assert len(blocks) == 2
    names: dict[str, object] = {}
    exec(blocks[0], names)
    first = capsys.readouterr().out
    assert "excess risk" in first and names["result"].pi.shape == (10, 3) and isinstance(names["result"].faa, float)
    exec(blocks[1], names)
    assert names["result"].clusters.tolist() in ([0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])
    assert names["newcomer"].pi.argmax() == names["result"].clusters[5]


@pytest.mark.slow
def test_the_readme_leads_from_csv_files_to_the_predictions_it_shows(tmp_path):
    section = (
        (ROOT / "README.md").read_text().partition("## From csv files to predictions")[2].partition("\n## ")[0]
    )
    (made,), (commands,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "sh"))
    shown = re.search(r"```\n(id,.*?)```", section, re.DOTALL)[1]
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, check=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands.splitlines():
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert len(commands.splitlines()) == 3
    rows, wanted = (
        list(csv.DictReader(t.splitlines())) for t in ((tmp_path / "predictions.csv").read_text(), shown)
    )
    assert [row["id"] for row in rows] == [row["id"] for row in wanted] == ["7", "8"]
    for row, other in zip(rows, wanted, strict=True):
        assert row["prediction"] == other["prediction"]
        assert float(row["p_ill"]) == pytest.approx(float(other["p_ill"]), abs=1e-3)


@pytest.mark.slow
def test_the_python_of_the_page_on_models_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks("docs/models.md"):
        exec(block, names)
    assert names["p"].shape == (len(names["y"]), 10) and (tmp_path / "gams" / "model.json").exists()
    assert names["result"].history["round"] == list(range(1, names["result"].rounds + 1))


def test_every_link_in_the_docs_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^):]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name}: {target}"


def test_the_algorithm_of_the_how_to_page_is_a_median_on_every_engine():
    blocks = python_blocks("docs/add-an-algorithm.md")
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    excess = names["result"].excess_risk
    assert excess[:9].abs().max() < 0.05 and 0.8 < excess[9] < 1.3  # as the page says
    for engine in ENGINES:
        setup = Setup.of(names["FedMedian"](step=0.5), names["fed"], 1, engine=engine)
        alone = Setup.of(ff.Local(), names["fed"], 1, engine=engine)
        w = setup.start()[0]["w"]
        (done,), (each,) = run(setup), run(alone)
        for k, v in w.items():
            half = (v.numpy() + np.sort(each.states["w"][k].numpy(), 0)[4]) / 2  # lower median of ten
            assert torch.allclose(done.server["w"][k], torch.from_numpy(half), atol=1e-5)
