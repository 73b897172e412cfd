"""The Python on the pages runs as it stands, and every link leads somewhere."""

import re
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
    blocks = python_blocks("README.md")
    assert len(blocks) == 2
    names: dict[str, object] = {}
    exec(blocks[0], names)
    first = capsys.readouterr().out
    assert "excess risk" in first and names["result"].pi.shape == (10, 3) and isinstance(names["result"].faa, float)
    exec(blocks[1], names)
    assert names["result"].clusters.tolist() in ([0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])
    assert names["newcomer"].pi.argmax() == names["result"].clusters[5]


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
