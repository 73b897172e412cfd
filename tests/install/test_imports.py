"""What is imported is listed in pyproject.toml, and what is listed is used."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.dependencies import ROOT, USER_EXTRAS, required
from packaging.utils import canonicalize_name

from focusfl.data.store.convert import _EXTRA

TOPS = ("src", "tests", "tools", "benchmarks", "examples")
NEEDS_FLOWER = ("src/focusfl/flower/", "src/focusfl/deploy/", "examples/")
NEEDS_PLOT = ("src/focusfl/report/plot.py", "src/focusfl/report/comparison.py", "src/focusfl/run/result.py")
NEEDS_TRACKING = ("src/focusfl/run/tracking/",)
IMPORTERS = {"import_module", "find_spec", "importorskip", "optional_library", "library", "_package"}
NOT_IMPORTED = {
    "pytest-xdist": "make test: pytest -n",
    "ruff": "make check",
    "mypy": "make check",
    "import-linter": "make check",
    "uv": "make lock",
}
PEERS = {"fluke": "fluke-fl"}  # modules named unlike their package, which only benchmarks/peers/ installs


class Import(NamedTuple):
    """An import statement, or the name of a module in a call such as `find_spec("flwr")`."""

    path: str
    line: int
    module: str
    by_name: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.package}"

    @property
    def package(self) -> str:
        """The package that brings the module."""
        installed = packages_of_modules().get(self.module)
        return canonicalize_name(installed[0] if installed else PEERS.get(self.module, self.module))


@cache
def packages_of_modules() -> dict[str, list[str]]:
    return dict(packages_distributions())


def statements(path: Path) -> Iterator[Import]:
    place = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                modules, by_name = [alias.name for alias in names], False
            case ast.ImportFrom(module=str(module), level=0):
                modules, by_name = [module], False
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(module)), *_]
            ) if called in IMPORTERS:
                modules, by_name = [module], True
            case _:
                continue
        for module in modules:
            yield Import(place, node.lineno, module.partition(".")[0], by_name)


@cache
def imports_below(top: str) -> list[Import]:
    """The imports below a folder that are neither Python's own, nor focusfl's, nor of files beside them."""
    ours = {"focusfl", *(path.stem for path in (ROOT / top).iterdir())}
    found = [one for path in sorted((ROOT / top).rglob("*.py")) for one in statements(path)]
    found = [one for one in found if not (ROOT / one.path).with_name(f"{one.module}.py").exists()]
    return [one for one in found if one.module not in ours and one.module not in sys.stdlib_module_names]


def allowed(one: Import) -> set[str]:
    """The packages that a file may import."""
    if one.path.startswith("benchmarks/peers/"):
        own = ROOT / f"{one.path.removesuffix('.py').removesuffix('_task')}.txt"
        lists = (
            [own] if own.exists() else (ROOT / "benchmarks/peers").glob("*.txt")
        )  # worker.py runs in all of them
        listed = [name for path in lists for name in re.findall(r"^[\w.-]+", path.read_text(), flags=re.MULTILINE)]
        return {*required(), *map(canonicalize_name, listed)}
    if one.path.startswith(("tests/", "tools/", "benchmarks/")):
        return set(required("dev"))
    if one.by_name:  # where a package is missing, focusfl says which extra brings it
        return set(required(*USER_EXTRAS))
    extras = {"flower": NEEDS_FLOWER, "plot": NEEDS_PLOT, "tracking": NEEDS_TRACKING}
    return set(required(*(extra for extra, paths in extras.items() if one.path.startswith(paths))))


@pytest.mark.parametrize("top", TOPS)
def test_every_import_is_of_a_package_that_pyproject_lists(top):
    missing = [str(one) for one in imports_below(top) if one.package not in allowed(one)]
    assert not missing, "list these in pyproject.toml (base, or the extra that the file belongs to)"


def test_every_package_that_pyproject_lists_is_used():
    imported = {one.package for top in TOPS for one in imports_below(top)}
    assert set(required("dev")) - imported == set(NOT_IMPORTED)


@pytest.mark.parametrize("extra", ["", "images", "tables", "text", "flower"])
def test_what_a_user_installs_is_imported_by_focusfl_itself(extra):
    imported = {one.package for one in imports_below("src")}
    assert set(required(extra) if extra else required()) <= imported


@pytest.mark.parametrize(("module", "extra"), _EXTRA.items())
def test_the_extra_that_a_message_names_brings_the_package(module, extra):
    assert Import("", 0, module, True).package in required(extra)
