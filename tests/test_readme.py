"""The README's Python runs as it stands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_readme_snippets(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
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
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
