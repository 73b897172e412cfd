"""Find the versions that focusfl is installed with, and the hashes of every file that the index lists for them.

    make lock       # after a change of pyproject.toml or constraints.txt

    constraints.txt          NAME==VERSION of everything below; a version that stands there is kept
    requirements/base.txt    what focusfl needs, and what builds it, with hashes
    requirements/dev.txt     what the extras and the development tools need besides
    requirements/cuda.txt    the libraries that torch's Linux build for CUDA needs besides

For another version, change or remove its line in constraints.txt first. torch's CPU build is not in the index:
requirements/cpu.txt is kept by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
FOLDER = ROOT / "requirements"
CUDA = re.compile(r"cuda-|nvidia-|triton")
OLDEST_PYTHON = "3.11"


@dataclass(frozen=True)
class Pin:
    """One version of a package, and the hashes of the files that may be installed."""

    name: str
    version: str
    marker: str
    hashes: frozenset[str]

    def __str__(self) -> str:
        """Return the entry of a requirements file."""
        marker = f" ; {self.marker}" if self.marker else ""
        hashes = [f"--hash={digest}" for digest in sorted(self.hashes)]
        return " \\\n    ".join([f"{self.name}=={self.version}{marker}", *hashes])


def read_pins(text: str) -> list[Pin]:
    """Read the entries of a requirements file with hashes."""
    pins = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if found := re.match(r"([\w.-]+)==([^\s;]+)\s*(?:;\s*(.*?))?(?=\s--hash|\s*$)", line):
            name, version, marker = found.groups(default="")
            hashes = frozenset(re.findall(r"--hash=(\S+)", line))
            pins.append(Pin(canonicalize_name(name), version, marker.strip(), hashes))
    return pins


def resolve(*extras: str) -> list[Pin]:
    """Resolve focusfl with these extras, and what builds it, for every platform."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--python-version", OLDEST_PYTHON, "--no-header", "--no-annotate"]
    command += [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(
        [*command, "-c", str(CONSTRAINTS), "pyproject.toml", "-"],
        input="\n".join([*build, "editables"]),  # hatchling asks for editables when it builds for `pip install -e`
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit(f"tools/lock.py: {done.stderr.strip()}")
    return read_pins(done.stdout)


def write(path: Path, what: str, lines: Iterable[object]) -> None:
    """Write a file with a first line that says what it is."""
    path.write_text("\n".join([f"# {what}. Written by `make lock`.", *map(str, lines)]) + "\n")


def main() -> None:
    """Write constraints.txt and requirements/."""
    everything = resolve("dev")
    versions = sorted({(pin.name, pin.version) for pin in everything})
    write(CONSTRAINTS, "The exact versions of requirements/, without hashes", map("==".join, versions))

    base = resolve()
    cuda = [pin for pin in base if CUDA.match(pin.name)]
    base = [pin for pin in base if pin not in cuda]
    dev = [pin for pin in everything if pin not in base and pin not in cuda]
    write(FOLDER / "base.txt", "What focusfl needs, and what builds it", base)
    write(FOLDER / "dev.txt", "What the extras and the development tools need besides base.txt", dev)
    write(FOLDER / "cuda.txt", "What torch's Linux build for CUDA needs besides base.txt", cuda)


if __name__ == "__main__":
    main()
