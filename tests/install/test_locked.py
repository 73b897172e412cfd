"""Nothing is installed but the files whose hashes stand in requirements/."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import pytest
from helpers.dependencies import ROOT, pyproject, required
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    tool = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = tool
    spec.loader.exec_module(tool)
    return tool


lock = load_tool()


def locked(*names: str) -> dict[str, str]:
    """Versions by name in files of requirements/."""
    pins = [pin for name in names for pin in lock.read_pins((ROOT / f"requirements/{name}.txt").read_text())]
    return {pin.name: pin.version for pin in pins}


def installed_closure(wanted: list[Requirement]) -> set[str]:
    """All packages that these requirements need in this environment, without the libraries of CUDA."""
    waiting, seen, names = list(wanted), set(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                lines = distribution(name).requires or []
            except PackageNotFoundError:
                pytest.fail(f"{name} is not installed: make .venv/.dev")
            further = [Requirement(line) for line in lines]
            waiting += [one for one in further if one.marker is None or one.marker.evaluate({"extra": extra})]
        names.add(name)
    return {name for name in names if not lock.CUDA.match(name)}


def test_every_version_stands_once_and_with_the_hashes_of_its_files():
    paths = sorted((ROOT / "requirements").iterdir())
    assert [path.stem for path in paths] == ["base", "cpu", "cuda", "dev"]
    for path in paths:
        pins = lock.read_pins(path.read_text())
        entries = [line for line in path.read_text().splitlines() if re.match(r"\w", line)]
        assert len(pins) == len({pin.name for pin in pins}) == len(entries) > 0, path.name
        for pin in pins:
            assert pin.hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in pin.hashes), pin.name


def test_constraints_and_hashes_are_of_the_same_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    constraints = dict(line.split("==") for line in lines)
    assert constraints == locked("base", "dev", "cuda")
    assert locked("cpu") == {"torch": f"{constraints['torch']}+cpu"}
    assert set(locked("base")).isdisjoint(locked("cuda")) and set(locked("dev")).isdisjoint(locked("cuda"))


def test_no_file_names_an_index():
    for path in [ROOT / "constraints.txt", *(ROOT / "requirements").glob("*.txt")]:
        assert not re.search(r"://|--(extra-)?index|--find-links|--trusted", path.read_text()), path.name


@pytest.mark.parametrize(("extras", "files"), [((), ["base"]), (("dev",), ["base", "dev"])])
def test_all_that_focusfl_needs_has_a_version_that_fits(extras, files):
    versions = locked(*files)
    build = [Requirement(line) for line in pyproject()["build-system"]["requires"]]
    for requirement in [*required(*extras).values(), *build]:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
    assert installed_closure(list(required(*extras).values())) <= set(versions)


def test_the_makefile_installs_by_hash_or_without_the_index(tmp_path):
    venv = tmp_path / "venv"
    steps = subprocess.run(["make", "-n", f"VENV={venv}", f"{venv}/.dev"], cwd=ROOT, capture_output=True, text=True)
    installs = re.findall(r"-m pip .*\binstall\b.*", steps.stdout)
    assert len(installs) == 6, steps  # torch, base, perhaps CUDA's libraries, focusfl; dev, focusfl
    for command in installs:
        assert "--require-hashes --no-deps --only-binary :all:" in command or "--no-index" in command
        assert ("--no-index" in command) == ("--no-build-isolation -e" in command)


def wheel(folder: Path, name: str, version: str, body: str) -> Path:
    """Write a wheel that pip can install."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", body)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def install(folder: Path, entry: str) -> subprocess.CompletedProcess[str]:
    """Install with the Makefile's options from a folder of wheels."""
    (folder / "entry.txt").write_text(entry)
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--target", str(folder / "installed")]
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-index"]
    command = [*pip, "--find-links", str(folder), *options, "-r", str(folder / "entry.txt")]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_another_file_under_the_name_of_a_pinned_version_is_refused(tmp_path):
    [pin] = [pin for pin in lock.read_pins((ROOT / "requirements/base.txt").read_text()) if pin.name == "mdurl"]
    forged = wheel(tmp_path, pin.name, pin.version, "print('not what was pinned')")
    refused = install(tmp_path, str(pin))
    assert refused.returncode == 1 and "HASHES" in refused.stderr and not (tmp_path / "installed").exists()
    digest = f"sha256:{sha256(forged.read_bytes()).hexdigest()}"
    known = install(tmp_path, str(lock.Pin(pin.name, pin.version, pin.marker, pin.hashes | {digest})))
    assert known.returncode == 0 and (tmp_path / "installed" / "mdurl").is_dir()


@pytest.mark.slow
def test_another_cpu_build_of_torch_stops_make(tmp_path):
    [pin] = lock.read_pins((ROOT / "requirements/cpu.txt").read_text())
    if not Marker(pin.marker).evaluate():
        pytest.skip("the list has no CPU build for this platform")
    wheel(tmp_path, pin.name, pin.version, "print('not what was pinned')")
    sources = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    venv = tmp_path / "venv"
    command = ["make", f"PYTHON={sys.executable}", f"VENV={venv}", f"{venv}/.base"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | sources, capture_output=True, text=True)
    assert done.returncode == 2 and "HASHES" in done.stdout
    assert "requirements/base.txt" not in done.stdout  # which would bring the build for CUDA


def test_what_is_written_is_read_back():
    pin = lock.Pin("a-b", "1.0", "sys_platform == 'win32'", frozenset({"sha256:" + "0" * 64, "sha256:" + "f" * 64}))
    assert lock.read_pins(f"# a comment\n{pin}\n") == [pin]
