"""Find the versions that focusfl is installed with, and the hashes of all their files.

    make lock                                        # after a change of pyproject.toml or constraints.txt
    python tools/lock.py --wheel FILE.whl            # accept this file too, which the index does not list

    constraints.txt          NAME==VERSION of everything below; a version that stands there is kept
    requirements/base.txt    what focusfl needs, and what builds it, with hashes
    requirements/dev.txt     what the extras and the development tools need besides
    requirements/cuda.txt    the libraries that torch's Linux build for CUDA needs besides

For another version, change or remove its line in constraints.txt first. The hashes are those of every file that
the index lists for a version, and those that already stood there: torch's CPU build is not in the index.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

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
        return " \\\n    ".join([f"{self.name}=={self.version}{marker}", *(f"--hash={h}" for h in sorted(self.hashes))])


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
    options = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--no-header", "--no-annotate"]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *options]
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


def known_hashes(wheels: list[Path]) -> dict[tuple[str, str], set[str]]:
    """Return the hashes of today's files by name and public version, with those of further wheels."""
    known: dict[tuple[str, str], set[str]] = {}
    for path in FOLDER.glob("*.txt"):
        for pin in read_pins(path.read_text()):
            known.setdefault((pin.name, pin.version), set()).update(pin.hashes)
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        known.setdefault((name, version.public), set()).add(f"sha256:{digest}")
    return known


def write(name: str, what: str, pins: list[Pin], known: dict[tuple[str, str], set[str]]) -> None:
    """Write one file of requirements/."""
    complete = [
        Pin(pin.name, pin.version, pin.marker, pin.hashes | known.get((pin.name, pin.version), set())) for pin in pins
    ]
    lines = [f"# {what}. Written by `make lock`.", *map(str, complete)]
    (FOLDER / name).write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write constraints.txt and requirements/."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--wheel", type=Path, action="append", default=[], help="accept this file too")
    known = known_hashes(arguments.parse_args().wheel)

    everything = resolve("dev")
    versions = [f"{name}=={version}" for name, version in sorted({(pin.name, pin.version) for pin in everything})]
    CONSTRAINTS.write_text("\n".join(["# The exact versions of requirements/, without hashes.", *versions]) + "\n")
    base = resolve()

    cuda = [pin for pin in base if CUDA.match(pin.name)]
    base = [pin for pin in base if pin not in cuda]
    dev = [pin for pin in everything if pin not in base and not CUDA.match(pin.name)]
    write("base.txt", "What focusfl needs, and what builds it", base, known)
    write("dev.txt", "What the extras and the development tools need besides base.txt", dev, known)
    write("cuda.txt", "What torch's Linux build for CUDA needs besides base.txt", cuda, known)


if __name__ == "__main__":
    main()
