"""What SECURITY.md promises of all source files at once; other promises have tests beside their code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
TORCH_LOADERS = {"torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"}
SAFE = {"allow_pickle": "False", "trust_remote_code": "False", "use_safetensors": "True"}


def test_no_source_file_unpickles():
    found = [f"{path.name}:{line}" for path in SOURCES for line in unpickling_lines(ast.parse(path.read_text()))]
    assert SOURCES and not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import loads",
        "from torch import load",
        "x = torch.load(path)",
        "x = np.load(path, allow_pickle=True)",
        "x = AutoModel.from_pretrained(path, use_safetensors=None)",
    ],
)
def test_unpickling_would_be_found(line):
    assert list(unpickling_lines(ast.parse(line))) == [1]


def unpickling_lines(tree: ast.Module) -> Iterator[int]:
    """The lines that import what unpickles, or call it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                bad = any(alias.name.partition(".")[0] in UNPICKLERS for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                bad = module.partition(".")[0] in UNPICKLERS
                bad |= module == "torch" and any(alias.name == "load" for alias in names)
            case ast.Call(func=function, keywords=options):
                bad = ast.unparse(function) in TORCH_LOADERS
                bad |= any(ast.unparse(o.value) != SAFE.get(o.arg, ast.unparse(o.value)) for o in options)
            case _:
                continue
        if bad:
            yield node.lineno
